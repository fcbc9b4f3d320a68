/* What evaluation asks, none of which has a gradient: the best answers, the best columns, the best of each level, ways down. */

/* The answer of greatest expected worth on a tree, for measures that do not ask how deep the true leaf is.

   With P_v the share of the leaves' mass at or below v, and S_v = S_parent + gain_v P_v,

       worth_v = factor * scale_v S_v + inside_v P_v + constant_v.

   Backward, every subtree's mass; forward, every answer's worth, eight samples side by side in double precision. Of equal
   answers, to `tie`, the most probable counts, then the first: only a group in which two came close is searched for them. */

typedef int64_t vlong __attribute__((vector_size(LANES * 4)));

typedef struct {
    vwide worth, mass, node; /* the best answer so far */
    vwide least;             /* what counts as equal to the best, in the second pass */
    vwide slack;             /* how close others must come to count as equal to one of size 0: twice that, to be safe */
    vlong near;              /* whether one came so close to the best so far */
} Best; /* of four samples: half a group */

typedef struct {
    float *only_leaves;        /* (nodes) 0 at leaves, -inf at inner nodes */
    v8 *cell;                  /* (nodes) exponentials of the leaves */
    vwide *sum, *stack, *path; /* (inner nodes, 2), (levels + 2, 2) twice */
} AnswerScratch;

INLINE void pick(const vlong *mask, const vwide *yes, vwide *best) {
    *best = (vwide)((*mask & (vlong)*yes) | (~*mask & (vlong)*best));
}

/* A cell as two halves: as one, it is converted in vectors. */
INLINE void widen_halves(const v8 *cell, vwide *half) {
    d8 wide;
    widen(cell, &wide);
    memcpy(half, &wide, sizeof wide);
}

INLINE float largest_leaf(const float *x, const float *only_leaves, int64_t n) {
    float best = -INFINITY;
    vfloat top = (vfloat){0} - INFINITY, v, mask;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        load(x + i, &v);
        load(only_leaves + i, &mask);
        v += mask;
        const vint more = v > top;
        choose(&more, &v, &top, &top);
    }
    for (int j = 0; j < LANES; j++) best = top[j] > best ? top[j] : best;
    for (; i < n; i++) best = x[i] + only_leaves[i] > best ? x[i] + only_leaves[i] : best;
    return best;
}

/* Exponentials of the leaves less the row's largest, and the sums of all subtrees, those of all in stack[0] and [1]. */
INLINE void leaf_sums(const Job *job, const float *const *x, const float *top, int64_t levels, AnswerScratch *s, vwide *offset) {
    const int64_t n = job->nodes;
    float row[GROUP][TILE];
    const float *rows[GROUP];
    int64_t inner = 0;
    for (int64_t l = 0; l < 2 * (levels + 2); l++) s->stack[l] = (vwide){0};
    offset[0] = offset[1] = (vwide){0};
    for (int r = 0; r < GROUP; r++) rows[r] = row[r];
    for (int64_t start = (n - 1) / TILE * TILE; start >= 0; start -= TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        for (int r = 0; r < GROUP; r++)
            for (int64_t i = 0; i < width; i += LANES) {
                vfloat v, mask;
                if (i + LANES <= width) {
                    load(x[r] + start + i, &v);
                    load(s->only_leaves + start + i, &mask);
                } else {
                    load_tail(x[r] + start + i, width - i, 0, &v);
                    load_tail(s->only_leaves + start + i, width - i, 0, &mask);
                }
                v = v + mask - top[r];
                exponential(&v);
                store(row[r] + i, &v);
            }
        to_cells(rows, 0, width, s->cell + start);
        for (int64_t c = width - 1; c >= 0; c--) {
            const int64_t v = start + c;
            vwide *here = s->stack + 2 * job->level[v];
            const int leaf = !is_inner(job->level, v, n);
            vwide sum[2];
            if (leaf) widen_halves(&s->cell[v], sum);
            for (int h = 0; h < 2; h++) {
                if (!leaf) {
                    sum[h] = here[2 + h];
                    here[2 + h] = (vwide){0};
                    s->sum[2 * inner + h] = sum[h];
                } else if (job->sample) {
                    offset[h] += sum[h] * job->sample[v];
                }
                here[h] += sum[h];
            }
            inner += !leaf;
        }
    }
}

/* Every answer's worth: the best, or with `again` the most probable of those that are as good. */
INLINE void look_at_all(const Job *job, int64_t inner, const vwide *inverse, int again, AnswerScratch *s, Best *best) {
    const int64_t n = job->nodes;
    const vlong size = (vlong){0} + INT64_MAX; /* all bits but the sign */
    s->path[0] = s->path[1] = (vwide){0} + job->begin; /* S of the top, whose mass is 1 */
    for (int64_t v = 0; v < n; v++) {
        vwide *here = s->path + 2 * job->level[v];
        const int leaf = !is_inner(job->level, v, n);
        const double gain = job->gain[v], scale = job->factor * job->scale[v], inside = job->inside[v], own = job->constant[v];
        const vwide node = (vwide){0} + (double)(job->order ? job->order[v] : v);
        vwide below[2];
        inner -= !leaf;
        if (leaf) widen_halves(&s->cell[v], below);
        for (int h = 0; h < 2; h++) {
            const vwide mass = (leaf ? below[h] : s->sum[2 * inner + h]) * inverse[h];
            const vwide path = here[h] + gain * mass, worth = path * scale + mass * inside + own;
            Best *b = best + h;
            here[2 + h] = path;
            if (job->order && !leaf) continue;
            if (again) {
                const vlong better =
                    (worth >= b->least) & ((mass > b->mass) | ((mass == b->mass) & (node < b->node)));
                pick(&better, &mass, &b->mass);
                pick(&better, &node, &b->node);
            } else {
                const vwide gap = (vwide)((vlong)(worth - b->worth) & size), most = (vwide)((vlong)b->worth & size);
                const vlong better = worth > b->worth;
                b->near = (b->near & ~better) | (gap <= b->slack) | (gap <= 2 * job->tie * most);
                pick(&better, &worth, &b->worth);
                pick(&better, &mass, &b->mass);
                pick(&better, &node, &b->node);
            }
        }
    }
}

INLINE int64_t count_inner(const Job *job) {
    int64_t inner = 0;
    for (int64_t v = 0; v < job->nodes; v++) inner += is_inner(job->level, v, job->nodes);
    return inner;
}

EVERY_CPU static void answer_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes, levels = deepest(job->level, n), inner = count_inner(job);
    AnswerScratch s = {.only_leaves = cells(n, sizeof(float)), .cell = cells(n, sizeof(v8)),
                       .sum = cells(2 * inner, sizeof(vwide)), .stack = cells(2 * (levels + 2), sizeof(vwide)),
                       .path = cells(2 * (levels + 2), sizeof(vwide))};
    share->failed = !s.only_leaves || !s.cell || !s.sum || !s.stack || !s.path;
    for (int64_t v = 0; v < n && !share->failed; v++)
        s.only_leaves[v] = is_inner(job->level, v, n) ? -INFINITY : 0;
    for (int64_t b = share->from; b < share->to && !share->failed; b += GROUP) {
        const int count = share->to - b < GROUP ? (int)(share->to - b) : GROUP;
        const float *x[GROUP];
        float top[GROUP];
        vwide offset[2], inverse[2];
        Best best[2];
        int64_t near = 0;
        for (int r = 0; r < GROUP; r++) { /* a group that is not full repeats its first sample */
            x[r] = r < count ? job->z + (b + r) * n : x[0];
            top[r] = r < count ? largest_leaf(x[r], s.only_leaves, n) : top[0];
        }
        leaf_sums(job, x, top, levels, &s, offset);
        for (int h = 0; h < 2; h++) {
            inverse[h] = 1.0 / s.stack[h];
            offset[h] *= inverse[h];
            best[h] = (Best){.worth = (vwide){0} - 1e300}; /* finite: an infinite one is near to everything */
            for (int r = 0; r < 4; r++) best[h].slack[r] = 2 * job->tie * (1 + fabs(offset[h][r]));
        }
        look_at_all(job, inner, inverse, 0, &s, best);
        for (int r = 0; r < GROUP; r++) {
            Best *half = best + r / 4;
            const double size = fabs(half->worth[r % 4] + offset[r / 4][r % 4]);
            half->least[r % 4] = half->worth[r % 4] - job->tie * (size > 1 ? size : 1);
            near |= half->near[r % 4];
        }
        if (near) {
            for (int h = 0; h < 2; h++) best[h].mass = (vwide){0} - 1.0;
            look_at_all(job, inner, inverse, 1, &s, best);
        }
        for (int r = 0; r < count; r++) {
            const Best *half = best + r / 4;
            const double all = inverse[r / 4][r % 4]; /* NaN if a score is */
            const int silent = top[r] == -INFINITY || all != all; /* no mass on the leaves, or none known */
            job->answer[b + r] = silent ? -1 : (int64_t)half->node[r % 4];
            job->answer_mass[b + r] = half->mass[r % 4];
            job->worth[b + r] = half->worth[r % 4] + offset[r / 4][r % 4];
        }
    }
    free(s.only_leaves), free(s.cell), free(s.sum), free(s.stack), free(s.path);
}

/* ------------------------------------------------------------------------------------------ columns */

/* The best columns of each row, best first, equal ones in their order, and the row's largest score, NaN where one is.

   Two passes. The first takes the largest of each of 64 sets of columns; the k-th of these is a bar that k columns at least
   reach, and not many more. The second finds the row in the cache and looks only at blocks with a column that reaches it. */

#define MOST_BEST 64 /* beyond, a sort is faster */
#define SETS 64
#define STRIDE 32 /* columns compared at once */

typedef int64_t vpairs __attribute__((vector_size(LANES * 4)));

INLINE int some_set(const vint *mask) {
    const vpairs pairs = (vpairs)*mask;
    return ((pairs[0] | pairs[1]) | (pairs[2] | pairs[3])) != 0;
}

INLINE int some_reach(const float *x, float bar) {
    vint any = {0};
    for (int i = 0; i < STRIDE; i += LANES) {
        vfloat v;
        load(x + i, &v);
        any |= v >= bar;
    }
    return some_set(&any);
}

/* Puts column c, of value x, into the `held` best; with all k held the worst one drops out. */
INLINE void insert(float *value, int64_t *column, int64_t held, int64_t k, float x, int64_t c) {
    int64_t at = held < k ? held : k - 1;
    for (; at > 0 && value[at - 1] < x; at--) {
        value[at] = value[at - 1];
        column[at] = column[at - 1];
    }
    value[at] = x;
    column[at] = c;
}

/* The largest of the columns i, i + SETS, ... for each i; -inf where there is none. Returns whether one is NaN. */
INLINE int largest_of_sets(const float *z, int64_t n, float *most) {
    vfloat top[SETS / LANES], v;
    vint nan = {0};
    int64_t c = 0;
    for (int i = 0; i < SETS / LANES; i++) top[i] = (vfloat){0} - INFINITY;
    for (; c + SETS <= n; c += SETS)
        for (int i = 0; i < SETS / LANES; i++) {
            load(z + c + i * LANES, &v);
            const vint more = v > top[i];
            nan |= v != v;
            choose(&more, &v, &top[i], &top[i]);
        }
    memcpy(most, top, sizeof top);
    int found = some_set(&nan);
    for (int64_t i = 0; c + i < n; i++) {
        if (z[c + i] > most[i]) most[i] = z[c + i];
        found |= z[c + i] != z[c + i];
    }
    return found;
}

EVERY_CPU static void rank_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->cols, k = job->best;
    for (int64_t b = share->from; b < share->to; b++) {
        const float *z = job->z + b * n;
        int64_t *column = job->answer + b * k, held = 0;
        float most[SETS], value[MOST_BEST];
        const int nan = largest_of_sets(z, n, most);
        for (int64_t i = 0; i < SETS; i++)
            if (i < k || most[i] > value[k - 1]) insert(value, column, i, k, most[i], i);
        float bar = value[k - 1];
        for (int64_t c = 0; c < n; c += STRIDE) {
            const int64_t end = c + STRIDE < n ? c + STRIDE : n;
            if (end - c == STRIDE && !some_reach(z + c, bar)) continue;
            for (int64_t i = c; i < end; i++) {
                if (!(z[i] >= bar) || (held == k && z[i] == bar)) continue;
                insert(value, column, held, k, z[i], i);
                held += held < k;
                if (held == k) bar = value[k - 1];
            }
        }
        job->top[b] = nan ? NAN : held ? value[0] : -INFINITY;
        for (; held < k; held++) column[held] = 0; /* a row of NaN, which is refused */
    }
}

/* ------------------------------------------------------------------------------------------ levels */

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

/* ------------------------------------------------------------------------------------------ walks */

/* Ways between columns and nodes that follow lists: down a hierarchy, and from the leaves to their nodes. */

/* From the top, always to the child of greatest mass, of equal ones the first; a leaf repeats. The children of node v are
   `node[start[v]]` and on, `high[v]` of them; those of the virtual root, -1, are the last list. */
static void walk_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes, steps = job->best;
    for (int64_t b = share->from; b < share->to; b++) {
        const float *z = job->z + b * n;
        int64_t at = job->ignore;
        float mass = at < 0 ? 0 : z[at];
        for (int64_t j = 0; j < steps; j++) {
            job->answer[b * steps + j] = at;
            job->top[b * steps + j] = mass;
            const int64_t list = at < 0 ? n : at;
            const int64_t *child = job->node + job->start[list];
            for (int64_t i = 0; i < job->high[list]; i++)
                if (i == 0 || z[child[i]] > mass) at = child[i], mass = z[at];
        }
    }
}

/* (rows, cols) -> (rows, nodes): column c to node[c], and -inf to all others. */
static void spread_rows(Share *share) {
    const Job *job = share->job;
    for (int64_t b = share->from; b < share->to; b++) {
        const float *z = job->z + b * job->cols;
        float *out = job->out + b * job->nodes;
        for (int64_t v = 0; v < job->nodes; v++) out[v] = -INFINITY;
        for (int64_t c = 0; c < job->cols; c++) out[job->node[c]] = z[c];
    }
}
