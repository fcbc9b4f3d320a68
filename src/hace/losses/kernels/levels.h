/* For each level of a tree, among its nodes and the leaves above it: the node of greatest mass, of equal ones the first, and
   the sum of squared masses. Eight samples side by side: inner nodes and leaves are gathered by their own level, and the
   leaves then carried down. */

typedef struct {
    v8 mass;
    vint node;
    d8 squares;
} LevelBest;

/* The better of both to `best`, of equal ones the first node. */
INLINE void take_better(const LevelBest *other, LevelBest *best) {
    const vint better = (other->mass > best->mass) | ((other->mass == best->mass) & (other->node < best->node));
    choose(&better, &other->mass, &best->mass, &best->mass);
    best->node = (better & other->node) | (~better & best->node);
    best->squares += other->squares;
}

/* One tile of nodes, by level: inner nodes at 2 * level, leaves behind them. */
INLINE void gather_levels(const Job *job, const v8 *cell, int64_t start, int64_t width, LevelBest *found) {
    for (int64_t c = 0; c < width; c++) {
        const int64_t v = start + c;
        LevelBest *here = found + 2 * job->level[v] + !is_inner(job->level, v, job->nodes);
        if (job->answer) {
            const vint better = cell[c] > here->mass;
            choose(&better, &cell[c], &here->mass, &here->mass);
            here->node = (better & (int32_t)v) | (~better & here->node);
        }
        if (job->worth) {
            v8 square = 2.0f * cell[c];
            d8 wide;
            exponential(&square);
            widen(&square, &wide);
            here->squares += wide;
        }
    }
}

EVERY_CPU static void level_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes, levels = job->best; /* level 0, the root's, is not asked for */
    LevelBest *found = cells(2 * (levels + 1), sizeof(LevelBest)), *none = cells(2 * (levels + 1), sizeof(LevelBest));
    share->failed = !found || !none;
    for (int64_t l = 0; l < 2 * (levels + 1) && !share->failed; l++)
        none[l] = (LevelBest){.mass = (v8){0} - INFINITY, .node = (vint){0} + (int32_t)n};
    for (int64_t v = n - 1; v >= 0 && !share->failed; v--) /* where all masses are 0 the first node counts, too */
        none[2 * job->level[v] + !is_inner(job->level, v, n)].node = (vint){0} + (int32_t)v;
    for (int64_t b = share->from; b < share->to && !share->failed; b += GROUP) {
        const int count = share->to - b < GROUP ? (int)(share->to - b) : GROUP;
        const float *x[GROUP];
        v8 cell[TILE];
        for (int r = 0; r < GROUP; r++) x[r] = job->z + (b + (r < count ? r : 0)) * n;
        memcpy(found, none, (size_t)(2 * (levels + 1)) * sizeof(LevelBest));
        for (int64_t start = 0; start < n; start += TILE) {
            const int64_t width = start + TILE < n ? TILE : n - start;
            to_cells(x, start, width, cell);
            gather_levels(job, cell, start, width, found);
        }
        for (int64_t l = 1; l <= levels; l++) {
            if (l > 1) take_better(&found[2 * l - 1], &found[2 * l + 1]); /* leaves of the levels above */
            take_better(&found[2 * l + 1], &found[2 * l]);
            for (int r = 0; r < count; r++) {
                const int64_t at = (b + r) * levels + l - 1;
                if (job->answer) job->answer[at] = found[2 * l].node[r], job->top[at] = found[2 * l].mass[r];
                if (job->worth) job->worth[at] = found[2 * l].squares[r];
            }
        }
    }
    free(found), free(none);
}
