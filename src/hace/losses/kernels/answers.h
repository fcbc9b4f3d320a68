/* What evaluation asks, none of which has a gradient: the best answers, the best columns, the best of each level, ways down. */

/* The answer of greatest expected worth on a tree, for measures that do not ask how deep the true leaf is.

   With P_v the share of the leaves' mass at or below v, and S_v = S_parent + gain_v P_v,

       worth_v = factor * scale_v S_v + inside_v P_v + constant_v,

   and no answer below v is worth more than worth_v + reach_v P_v. First every subtree's mass, then, in preorder, the worth of
   the answers, in double precision for eight samples side by side: a subtree in which none of the eight can reach the best
   answer on the path of its most probable leaf, or of those before, is skipped. Of equal answers, to `tie`, the most probable
   counts, then the first: only a group in which two came close is searched for them. */

#define HALF (GROUP / 2)

typedef struct {
    vwide worth, mass, node; /* the best answer so far */
    vwide least;             /* what a subtree must reach to be looked at; in the second pass, what counts as equal to the best */
    vwide slack;             /* how close others must come to count as equal to one of size 0: twice that, to be safe */
    vlong near;              /* whether one came so close to the best so far */
} Best; /* of half a group */

typedef struct {
    Places at;
    float *only_leaves;             /* (nodes) 0 at leaves, -inf at inner nodes */
    int32_t *number, *parent, *end; /* (nodes) among the inner nodes, 0 for a leaf; -1 for none; where the subtree ends */
    vfloat *cell;                       /* (nodes) exponentials of the leaves */
    vdouble *sum;                        /* (inner nodes + 1) of subtrees; that of all first */
    vwide *path;                    /* (levels + 2, 2) */
} AnswerScratch;

INLINE void pick(const vlong *mask, const vwide *yes, vwide *best) {
    *best = (vwide)((*mask & (vlong)*yes) | (~*mask & (vlong)*best));
}

/* A cell as two halves: as one, it is converted in vectors. */
INLINE void widen_halves(const vfloat *cell, vwide *half) {
    vdouble wide;
    widen(cell, &wide);
    memcpy(half, &wide, sizeof wide);
}

#define STRIDE 32 /* columns compared at once */

INLINE float largest_leaf(const float *x, const float *only_leaves, int64_t n) {
    float best = -INFINITY;
    vfloat top[STRIDE / LANES], v, mask;
    int64_t i = 0;
    for (int j = 0; j < STRIDE / LANES; j++) top[j] = (vfloat){0} - INFINITY;
    for (; i + STRIDE <= n; i += STRIDE)
        for (int j = 0; j < STRIDE / LANES; j++) { /* each comparison waits for the one before it */
            load(x + i + j * LANES, &v);
            load(only_leaves + i + j * LANES, &mask);
            v += mask;
            const vint more = v > top[j];
            choose(&more, &v, &top[j], &top[j]);
        }
    for (int j = 0; j < STRIDE; j++) best = ((float *)top)[j] > best ? ((float *)top)[j] : best;
    for (; i < n; i++) best = x[i] + only_leaves[i] > best ? x[i] + only_leaves[i] : best;
    return best;
}

/* The first leaf of this score. */
INLINE int64_t first_leaf(const float *x, const float *only_leaves, int64_t n, float score) {
    int64_t i = 0;
    for (vfloat v, mask; i + STRIDE <= n; i += STRIDE) {
        vint same = {0};
        for (int j = 0; j < STRIDE; j += LANES) {
            load(x + i + j, &v);
            load(only_leaves + i + j, &mask);
            same |= v + mask == score;
        }
        if (some_set(&same)) break;
    }
    while (i < n - 1 && x[i] + only_leaves[i] != score) i++;
    return i;
}

INLINE void add_leaves(const Job *job, int size, const Place **block, int64_t end, AnswerScratch *s, vdouble *offset) {
    for (; (*block)->node < end; ++*block) {
        vdouble sum = {0}, wide;
        for (int64_t v = (*block)->node; v < (*block)->node + size; v++) {
            widen(&s->cell[v], &wide);
            sum += wide;
            if (job->sample) *offset += wide * job->sample[v];
        }
        s->sum[(*block)->above] += sum;
    }
}

/* Exponentials of the leaves less the row's largest, and the sums of all subtrees. Those of inner nodes mean nothing. */
INLINE void leaf_sums(const Job *job, const float *const *x, const float *top, AnswerScratch *s, vdouble *offset) {
    const int64_t n = job->nodes;
    const Place *four = s->at.list[FOURS], *two = s->at.list[TWOS], *one = s->at.list[ONES];
    float *const nowhere[GROUP] = {0};
    for (int64_t i = 0; i <= s->at.inner; i++) s->sum[i] = (vdouble){0};
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t end = start + TILE < n ? start + TILE : n;
        exp_cells(x, start, end - start, top, nowhere, NULL, NULL, s->cell + start);
        add_leaves(job, 4, &four, end, s, offset);
        add_leaves(job, 2, &two, end, s, offset);
        add_leaves(job, 1, &one, end, s, offset);
    }
    for (int64_t i = s->at.inner; i > 0; i--) s->sum[s->at.list[INNER][i - 1].above] += s->sum[i];
}

/* What sample r's best answer is worth on the path of its most probable leaf. */
INLINE double worth_on_path(const Job *job, int64_t leaf, int r, double inverse, const AnswerScratch *s, int64_t *path) {
    double sum = job->begin, best = -1e300; /* finite: an infinite one is near to everything */
    int64_t steps = 0;
    for (int64_t v = leaf; v >= 0; v = s->parent[v]) path[steps++] = v;
    while (steps-- > 0) {
        const int64_t v = path[steps];
        const double mass = (v == leaf ? s->cell[v][r] : s->sum[s->number[v]][r]) * inverse;
        sum += job->gain[v] * mass;
        const double worth = sum * (job->factor * job->scale[v]) + mass * job->inside[v] + job->constant[v];
        if (worth > best && (v == leaf || !job->order)) best = worth;
    }
    return best;
}

/* The worth of answers: the best, or with `again` the most probable of those that are as good. */
INLINE void look_at_all(const Job *job, const vwide *inverse, int again, AnswerScratch *s, Best *best) {
    const int64_t n = job->nodes;
    const vlong size = (vlong){0} + INT64_MAX; /* all bits but the sign */
    s->path[0] = s->path[1] = (vwide){0} + job->begin; /* S of the top, whose mass is 1 */
    for (int64_t v = 0, next; v < n; v = next) {
        vwide *here = s->path + 2 * job->level[v];
        const int leaf = !s->number[v];
        const double gain = job->gain[v], scale = job->factor * job->scale[v], inside = job->inside[v], own = job->constant[v];
        const vwide node = (vwide){0} + (double)(job->order ? job->order[v] : v);
        vwide below[2];
        vlong reached = {0};
        if (leaf) widen_halves(&s->cell[v], below);
        else memcpy(below, &s->sum[s->number[v]], sizeof below);
        for (int h = 0; h < 2; h++) {
            const vwide mass = below[h] * inverse[h];
            const vwide path = here[h] + gain * mass, worth = path * scale + mass * inside + own;
            Best *b = best + h;
            here[2 + h] = path;
            reached |= worth + mass * job->reach[v] >= b->least - b->slack;
            if (job->order && !leaf) continue;
            if (again) {
                const vlong better =
                    (worth >= b->least) & ((mass > b->mass) | ((mass == b->mass) & (node < b->node)));
                pick(&better, &mass, &b->mass);
                pick(&better, &node, &b->node);
            } else {
                const vwide gap = (vwide)((vlong)(worth - b->worth) & size), most = (vwide)((vlong)b->worth & size);
                const vwide least = worth - b->slack - 2 * job->tie * (vwide)((vlong)worth & size);
                const vlong better = worth > b->worth, more = least > b->least;
                b->near = (b->near & ~better) | (gap <= b->slack) | (gap <= 2 * job->tie * most);
                pick(&better, &worth, &b->worth);
                pick(&better, &mass, &b->mass);
                pick(&better, &node, &b->node);
                pick(&more, &least, &b->least);
            }
        }
        next = leaf || some_set((const vint *)&reached) ? v + 1 : s->end[v];
    }
}

INLINE void answer_tables(const Job *job, AnswerScratch *s, int64_t *last) {
    const int64_t n = job->nodes;
    for (int64_t v = 0, number = 0; v < n; v++) {
        const int inner = is_inner(job->level, v, n);
        s->only_leaves[v] = inner ? -INFINITY : 0;
        s->number[v] = inner ? (int32_t)++number : 0;
        s->parent[v] = job->level[v] ? (int32_t)last[job->level[v] - 1] : -1;
        s->end[v] = (int32_t)v + 1;
        last[job->level[v]] = v;
    }
    for (int64_t v = n - 1; v >= 0; v--)
        if (s->parent[v] >= 0 && s->end[v] > s->end[s->parent[v]]) s->end[s->parent[v]] = s->end[v];
}

static void answer_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes, levels = deepest(job->level, n);
    AnswerScratch s = {.only_leaves = cells(n, sizeof(float)), .number = cells(n, sizeof(int32_t)),
                       .parent = cells(n, sizeof(int32_t)), .end = cells(n, sizeof(int32_t)), .cell = cells(n, sizeof(vfloat)),
                       .path = cells(2 * (levels + 2), sizeof(vwide))};
    int64_t *path = cells(levels + 1, sizeof(int64_t));
    open_places(job->places, &s.at);
    s.sum = cells(s.at.inner + 1, sizeof(vdouble));
    share->failed = !s.only_leaves || !s.number || !s.parent || !s.end || !s.cell || !s.path || !path || !s.sum;
    if (!share->failed) answer_tables(job, &s, path);
    for (int64_t b = share->from; b < share->to && !share->failed; b += GROUP) {
        const int count = share->to - b < GROUP ? (int)(share->to - b) : GROUP;
        const float *x[GROUP];
        float top[GROUP];
        vdouble sums = {0};
        vwide offset[2], inverse[2];
        Best best[2] = {0};
        int64_t near = 0;
        for (int r = 0; r < GROUP; r++) { /* a group that is not full repeats its first sample */
            x[r] = r < count ? job->z + (b + r) * n : x[0];
            top[r] = r < count ? largest_leaf(x[r], s.only_leaves, n) : top[0];
        }
        leaf_sums(job, x, top, &s, &sums);
        memcpy(offset, &sums, sizeof offset);
        memcpy(inverse, &s.sum[0], sizeof inverse);
        for (int h = 0; h < 2; h++) {
            inverse[h] = 1.0 / inverse[h];
            offset[h] *= inverse[h];
            best[h].worth = (vwide){0} - 1e300;
        }
        for (int r = 0; r < GROUP; r++) {
            Best *half = best + r / HALF;
            const int64_t leaf = first_leaf(x[r], s.only_leaves, n, top[r]);
            const double known = worth_on_path(job, leaf, r, inverse[r / HALF][r % HALF], &s, path);
            half->slack[r % HALF] = 2 * job->tie * (1 + fabs(offset[r / HALF][r % HALF]));
            half->least[r % HALF] = known - half->slack[r % HALF] - 2 * job->tie * fabs(known);
        }
        look_at_all(job, inverse, 0, &s, best);
        for (int r = 0; r < GROUP; r++) {
            Best *half = best + r / HALF;
            const double size = fabs(half->worth[r % HALF] + offset[r / HALF][r % HALF]);
            half->least[r % HALF] = half->worth[r % HALF] - job->tie * (size > 1 ? size : 1);
            near |= half->near[r % HALF];
        }
        if (near) {
            for (int h = 0; h < 2; h++) best[h].mass = (vwide){0} - 1.0;
            look_at_all(job, inverse, 1, &s, best);
        }
        for (int r = 0; r < count; r++) {
            const Best *half = best + r / HALF;
            const double all = inverse[r / HALF][r % HALF]; /* NaN if a score is */
            const int silent = top[r] == -INFINITY || all != all; /* no mass on the leaves, or none known */
            job->answer[b + r] = silent ? -1 : (int64_t)half->node[r % HALF];
            job->answer_mass[b + r] = half->mass[r % HALF];
            job->worth[b + r] = half->worth[r % HALF] + offset[r / HALF][r % HALF];
        }
    }
    free(s.only_leaves), free(s.number), free(s.parent), free(s.end), free(s.cell), free(s.path), free(s.sum), free(path);
}

/* ------------------------------------------------------------------------------------------ columns */

/* The best columns of each row, best first, equal ones in their order, and the row's largest score, NaN where one is.

   Two passes. The first takes the largest of each of 64 sets of columns; the k-th of these is a bar that k columns at least
   reach, and not many more. The second finds the row in the cache and looks only at blocks with a column that reaches it. */

#define MOST_BEST 64 /* beyond, a sort is faster */
#define SETS 64

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
    int any_nan = some_set(&nan);
    for (int64_t i = 0; c + i < n; i++) {
        if (z[c + i] > most[i]) most[i] = z[c + i];
        any_nan |= z[c + i] != z[c + i];
    }
    return any_nan;
}

static void rank_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->cols, k = job->best;
    for (int64_t b = share->from; b < share->to; b++) {
        const float *z = job->z + b * n;
        int64_t *column = job->answer + b * k, held = 0;
        float most[SETS], value[MOST_BEST] = {0};
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
    vfloat mass;
    vint node;
    vdouble squares;
} LevelBest;

/* The better of both to `best`, of equal ones the first node. */
INLINE void take_better(const LevelBest *other, LevelBest *best) {
    const vint better = (other->mass > best->mass) | ((other->mass == best->mass) & (other->node < best->node));
    choose(&better, &other->mass, &best->mass, &best->mass);
    best->node = (better & other->node) | (~better & best->node);
}

/* Nodes of one level, side by side. */
INLINE void gather_nodes(const Job *job, int size, const vfloat *cell, int64_t v, LevelBest *here) {
    if (job->answer) {
        LevelBest best = {.mass = cell[0], .node = (vint){0} + (int32_t)v};
        for (int j = 1; j < size; j++) {
            const vint better = cell[j] > best.mass;
            choose(&better, &cell[j], &best.mass, &best.mass);
            best.node = (better & (int32_t)(v + j)) | (~better & best.node);
        }
        take_better(&best, here);
    }
    if (job->worth) {
        vfloat square[4], sum;
        vdouble wide;
        for (int j = 0; j < size; j++) square[j] = 2.0f * cell[j];
        exponentials(square, size);
        add_block(size, square, &sum);
        widen(&sum, &wide);
        here->squares += wide;
    }
}

/* Leaves of a tile, in blocks of one parent. */
INLINE void gather_leaves(const Job *job, int size, const Place **block, int64_t start, int64_t end, const vfloat *cell,
                          LevelBest *found) {
    for (; (*block)->node < end; ++*block) {
        const int64_t v = (*block)->node;
        gather_nodes(job, size, cell + v - start, v, found + 2 * job->level[v] + 1);
    }
}

static void level_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes, levels = job->best; /* level 0, the root's, is not asked for */
    LevelBest *found = cells(2 * (levels + 1), sizeof(LevelBest)), *none = cells(2 * (levels + 1), sizeof(LevelBest));
    share->failed = !found || !none;
    for (int64_t l = 0; l < 2 * (levels + 1) && !share->failed; l++)
        none[l] = (LevelBest){.mass = (vfloat){0} - INFINITY, .node = (vint){0} + (int32_t)n};
    for (int64_t v = n - 1; v >= 0 && !share->failed; v--) /* where all masses are 0 the first node counts, too */
        none[2 * job->level[v] + !is_inner(job->level, v, n)].node = (vint){0} + (int32_t)v;
    Places at;
    open_places(job->places, &at);
    for (int64_t b = share->from; b < share->to && !share->failed; b += GROUP) {
        const int count = share->to - b < GROUP ? (int)(share->to - b) : GROUP;
        const Place *inner = at.list[INNER], *four = at.list[FOURS], *two = at.list[TWOS], *one = at.list[ONES];
        const float *x[GROUP];
        vfloat cell[TILE];
        for (int r = 0; r < GROUP; r++) x[r] = job->z + (b + (r < count ? r : 0)) * n;
        memcpy(found, none, (size_t)(2 * (levels + 1)) * sizeof(LevelBest));
        for (int64_t start = 0; start < n; start += TILE) {
            const int64_t end = start + TILE < n ? start + TILE : n;
            to_cells(x, start, end - start, cell);
            for (; inner->node < end; inner++)
                gather_nodes(job, 1, cell + inner->node - start, inner->node, found + 2 * job->level[inner->node]);
            gather_leaves(job, 4, &four, start, end, cell, found);
            gather_leaves(job, 2, &two, start, end, cell, found);
            gather_leaves(job, 1, &one, start, end, cell, found);
        }
        for (int64_t l = 1; l <= levels; l++) {
            LevelBest *leaves = found + 2 * l + 1, *all = found + 2 * l;
            if (l > 1) take_better(leaves - 2, leaves), leaves->squares += leaves[-2].squares; /* those of the levels above */
            take_better(leaves, all), all->squares += leaves->squares;
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

/* From the top, always to the child of greatest mass, of equal ones, to TIED, the first; a leaf repeats. The children of node v
   are `node[start[v]]` and on, `high[v]` of them; those of the virtual root, -1, are the last list. */
#define TIED 0x1p-20f /* of logarithms, and relative to them: masses this close are equal but for rounding */

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
            const int64_t children = job->high[list];
            if (!children) continue;
            float best = z[child[0]];
            for (int64_t i = 1; i < children; i++) best = z[child[i]] > best ? z[child[i]] : best;
            const float size = fabsf(best) < 1e4f ? fabsf(best) : 1e4f;
            int64_t first = 0;
            while (z[child[first]] < best - TIED * (1 + size)) first++;
            at = child[first], mass = z[at];
        }
    }
}

/* (rows, cols) -> (rows, nodes). */
static void spread_rows(Share *share) {
    const Job *job = share->job;
    for (int64_t b = share->from; b < share->to; b++) spread_row(job, b, job->out + b * job->nodes);
}
