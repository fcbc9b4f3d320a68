/* Targets at all nodes of a tree: label smoothing, soft labels, and log q* itself.

   Up, every subtree's sum S_v in units of exp(the row's largest logit); down, a_v = sum of T_u / S_u over v and all above it,
   so that the gradient is term_v * (mass / S_all - a_v). A leaf's sum is its own term, so that it needs neither a logarithm nor
   a division: its part of the loss is T_v (x_v - top), and of the gradient T_v. Terms wait in the rows of the gradient: a large
   tree needs little room beside it. Logits within SAFE_RANGE of their row's largest share one shift; a row beyond that goes the
   careful way, where every subtree has its own shift. */

typedef union {
    vdouble sum; /* of the subtree, while it grows */
    struct {
        vfloat whole, factor; /* that sum; T_v / S_v, and in the pass down what the terms of v's leaves are multiplied by */
    };
} Inner; /* an inner node; number 0 stands above the tops */

typedef struct {
    Places at;
    Inner *inner; /* (inner nodes + 1) */
    double *shift, *own, *above; /* (nodes + 1) the careful way, made when first needed */
} NodeScratch;

/* Every subtree's sum with its own shift, for one sample. */
INLINE void careful_sums(const Job *job, const float *x, NodeScratch *s) {
    const int64_t n = job->nodes;
    for (int64_t v = 0; v < n; v++) {
        s->shift[v] = x[v];
        s->own[v] = x[v] == -INFINITY ? 0 : x[v] == INFINITY ? NAN : 1; /* inf - inf */
    }
    s->shift[n] = -INFINITY;
    s->own[n] = 0;
    for (int64_t v = n - 1; v >= 0; v--) {
        int64_t p = job->parent[v];
        if (s->shift[v] > s->shift[p]) {
            s->own[p] = s->own[p] * exp(s->shift[p] - s->shift[v]) + s->own[v];
            s->shift[p] = s->shift[v];
        } else {
            s->own[p] += s->own[v] * exp(minus(s->shift[v], s->shift[p]));
        }
        if (x[v] != x[v]) s->own[p] = NAN;
    }
    if (s->own[n] == 0) s->own[n] = NAN; /* nothing is possible: nan, as in torch */
}

INLINE Lse careful_lse(const NodeScratch *s, int64_t v) { return (Lse){s->shift[v], log(s->own[v])}; }

INLINE double careful_log(const NodeScratch *s, int64_t v, int64_t all) {
    Lse own = careful_lse(s, v), whole = careful_lse(s, all);
    return own.log_sum == -INFINITY && s->own[all] == s->own[all] ? -INFINITY : lse_less(&own, &whole);
}

/* One sample the careful way: its targets are t plus the sparse row. Returns the loss. */
INLINE double careful_row(const Job *job, const float *x, int64_t b, NodeScratch *s, double scale, float *grad) {
    const int64_t n = job->nodes;
    const float *t = job->dense + b * job->dense_stride;
    careful_sums(job, x, s);
    for (int64_t v = 0; v < n; v++) s->above[v] = t[v];
    if (job->target)
        for (int64_t e = job->start[job->target[b]]; e < job->start[job->target[b] + 1]; e++)
            s->above[job->node[e]] += job->value[e];
    double loss = 0, mass = 0;
    for (int64_t v = 0; v < n; v++) {
        if (s->above[v] == 0) continue;
        loss -= s->above[v] * careful_log(s, v, n);
        mass += s->above[v];
    }
    if (!grad) return loss;
    Lse whole = careful_lse(s, n);
    for (int64_t v = 0; v < n; v++) { /* above_v = T_v + exp(L_v - L_parent) above_parent */
        int64_t p = job->parent[v];
        Lse own = careful_lse(s, v), up = careful_lse(s, p), at = {x[v], 0};
        if (p < n) s->above[v] += exp(lse_less(&own, &up)) * s->above[p];
        double inside = x[v] == -INFINITY ? 0 : exp(lse_less(&at, &own)) * s->above[v];
        grad[v] = (float)(scale * (exp(lse_less(&at, &whole)) * mass - inside));
    }
    return loss;
}

INLINE int careful_scratch(NodeScratch *s, int64_t n) {
    if (!s->shift) s->shift = malloc((size_t)(n + 1) * sizeof(double));
    if (!s->own) s->own = malloc((size_t)(n + 1) * sizeof(double));
    if (!s->above) s->above = malloc((size_t)(n + 1) * sizeof(double));
    return s->shift && s->own && s->above;
}

typedef struct {
    const float *x[GROUP], *t[GROUP]; /* logits and dense targets */
    float top[GROUP];                 /* largest logits */
    int64_t from[GROUP];              /* the sample */
    int quick[GROUP], count;
    vdouble mass, loss, all; /* `all`: sum of all terms */
} Group;

/* A row of scores: column c to node[c], and -inf to all others. */
INLINE void spread_row(const Job *job, int64_t b, float *out) {
    const float *z = job->z + b * job->cols;
    for (int64_t v = 0; v < job->nodes; v++) out[v] = -INFINITY;
    for (int64_t c = 0; c < job->cols; c++) out[job->node[c]] = z[c];
}

/* Scores of the leaves alone are spread to where log q* will be. */
INLINE void set_group(const Job *job, int64_t b, int count, Group *g) {
    const int64_t n = job->nodes;
    const int spread = job->log_probs && job->node;
    *g = (Group){.count = count};
    for (int r = 0; r < count && spread; r++) spread_row(job, b + r, job->log_probs + (b + r) * n);
    for (int r = 0; r < GROUP; r++) { /* a group that is not full repeats its first sample */
        const int64_t i = b + (r < count ? r : 0);
        g->from[r] = i;
        g->x[r] = (spread ? job->log_probs : job->z) + i * n;
        g->t[r] = job->dense ? job->dense + i * job->dense_stride : NULL;
        if (r >= count) g->top[r] = g->top[0];
        else if (job->log_probs) g->quick[r] = close_or_impossible(g->x[r], n, &g->top[r]);
        else g->quick[r] = close_together(g->x[r], n, &g->top[r]) && !(job->target && job->target[i] == job->ignore);
    }
}

/* A row whose sum is NaN holds one: it goes the careful way. */
INLINE void drop_nan(Group *g, const vdouble *all) {
    for (int r = 0; r < g->count; r++) g->quick[r] &= (*all)[r] == (*all)[r];
}

/* Targets of a tile, 0 at inner nodes, of which the first is `inner`. All samples may share them. */
INLINE void leaf_targets(const Job *job, const Group *g, const Place *inner, int64_t start, int64_t width, float (*tile)[TILE],
                         const float **target) {
    for (int r = 0; r < GROUP; r++) {
        const int own = r == 0 || job->dense_stride;
        target[r] = tile[own ? r : 0];
        if (own) memcpy(tile[r], g->t[r] + start, (size_t)width * sizeof(float));
        for (const Place *p = inner; own && p->node < start + width; p++) tile[r][p->node - start] = 0;
    }
}

INLINE void add_blocks(int size, const Place **block, int64_t start, int64_t end, const vfloat *tile, Inner *inner) {
    for (; (*block)->node < end; ++*block) {
        vfloat sum;
        vdouble part;
        add_block(size, tile + (*block)->node - start, &sum);
        widen(&sum, &part);
        inner[(*block)->above].sum += part;
    }
}

/* The sums of inner nodes, and that of all; sum_v T_v log S_v of the dense targets as the loss. With a gradient the terms are left
   in its rows. */
INLINE void sum_subtrees(const Job *job, Group *g, NodeScratch *s) {
    const int64_t n = job->nodes;
    const Place *place = s->at.list[INNER], *four = s->at.list[FOURS], *two = s->at.list[TWOS], *one = s->at.list[ONES];
    Inner *inner = s->inner;
    vfloat cell[TILE], ratio;
    float tile[GROUP][TILE], *rows[GROUP];
    const float *target[GROUP];
    int64_t i = 0;
    for (int r = 0; r < GROUP; r++) rows[r] = job->grad && g->quick[r] ? job->grad + g->from[r] * n : NULL;
    inner[0].sum = (vdouble){0};
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start, end = start + width;
        if (job->dense) leaf_targets(job, g, place + i, start, width, tile, target);
        if (job->dense) exp_cells(g->x, start, width, g->top, rows, target, &g->loss, cell);
        else exp_cells(g->x, start, width, g->top, rows, NULL, NULL, cell);
        for (; place[i].node < end; i++) widen(&cell[place[i].node - start], &inner[i + 1].sum);
        add_blocks(4, &four, start, end, cell, inner);
        add_blocks(2, &two, start, end, cell, inner);
        add_blocks(1, &one, start, end, cell, inner);
    }
    for (; i > 0; i--) {
        vfloat sum, t = {0};
        vdouble part;
        inner[place[i - 1].above].sum += inner[i].sum;
        narrow(&inner[i].sum, &sum);
        if (job->dense) {
            if (!job->dense_stride) t += g->t[0][place[i - 1].node];
            else for (int r = 0; r < GROUP; r++) t[r] = g->t[r][place[i - 1].node];
            ratio = sum;
            logarithm(&ratio);
            ratio *= t;
            widen(&ratio, &part);
            g->loss += part;
        }
        inner[i].whole = sum;
        inner[i].factor = t / sum;
    }
    g->all = inner[0].sum;
}

/* Number of the inner node at v. */
INLINE int64_t number_of(const Places *at, int64_t v) {
    int64_t low = 0, high = at->inner;
    while (low + 1 < high) {
        const int64_t middle = (low + high) / 2;
        if (at->list[INNER][middle].node <= v) low = middle;
        else high = middle;
    }
    return low + 1;
}

/* Adds a sample's sparse row; the gradient gets what is at a label that is a leaf when all else is done. */
INLINE void add_row(const Job *job, Group *g, int r, NodeScratch *s) {
    const int64_t y = job->target[g->from[r]];
    for (int64_t e = job->start[y]; e < job->start[y + 1]; e++) {
        const int64_t v = job->node[e];
        const double value = job->value[e];
        g->mass[r] += value;
        if (!is_inner(job->level, v, job->nodes)) {
            g->loss[r] += value * (g->x[r][v] - g->top[r]);
            continue;
        }
        Inner *at = s->inner + number_of(&s->at, v);
        g->loss[r] += value * log(at->whole[r]);
        at->factor[r] += (float)(value / at->whole[r]);
    }
}

INLINE void scale_blocks(int size, const Place **block, int64_t start, int64_t end, const Inner *inner, vfloat *tile) {
    for (; (*block)->node < end; ++*block)
        for (int j = 0; j < size; j++) tile[(*block)->node - start + j] *= inner[(*block)->above].factor;
}

/* Down: the gradients, from the terms in their rows. */
INLINE void gradients_down(const Job *job, Group *g, double scale, NodeScratch *s) {
    const int64_t n = job->nodes;
    const Place *place = s->at.list[INNER], *four = s->at.list[FOURS], *two = s->at.list[TWOS], *one = s->at.list[ONES];
    const float by = (float)scale;
    Inner *inner = s->inner;
    vfloat cell[TILE];
    float tile[GROUP][TILE], row[GROUP][TILE], *terms[GROUP], *any = NULL;
    const float *target[GROUP];
    const vdouble share = scale * g->mass / g->all;
    narrow(&share, &inner[0].factor);
    for (int r = 0; r < g->count; r++)
        if (g->quick[r]) any = job->grad + g->from[r] * n;
    for (int r = 0; r < GROUP; r++) terms[r] = g->quick[r] ? job->grad + g->from[r] * n : any;
    if (!any) return;
    for (int64_t start = 0, i = 0; start < n; start += TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start, end = start + width;
        leaf_targets(job, g, place + i, start, width, tile, target);
        to_cells((const float *const *)terms, start, width, cell);
        for (; place[i].node < end; i++) {
            inner[i + 1].factor = inner[place[i].above].factor - by * inner[i + 1].factor;
            cell[place[i].node - start] *= inner[i + 1].factor;
        }
        scale_blocks(4, &four, start, end, inner, cell);
        scale_blocks(2, &two, start, end, inner, cell);
        scale_blocks(1, &one, start, end, inner, cell);
        to_rows(cell, width, row);
        for (int r = 0; r < g->count; r++) {
            int64_t c = g->quick[r] ? 0 : width;
            for (vfloat v, t; c + LANES <= width; c += LANES) {
                load(row[r] + c, &v);
                load(target[r] + c, &t);
                v -= by * t;
                store(terms[r] + start + c, &v);
            }
            for (; c < width; c++) terms[r][start + c] = row[r][c] - by * target[r][c];
        }
    }
    for (int r = 0; r < g->count && job->target; r++) { /* labels that are leaves */
        const int64_t e = g->quick[r] ? job->start[job->target[g->from[r]]] : 0;
        if (!g->quick[r] || e == job->start[job->target[g->from[r]] + 1]) continue;
        if (!is_inner(job->level, job->node[e], n)) terms[r][job->node[e]] -= by * (float)job->value[e];
    }
}

/* log q* of every node, row by row: a leaf's is its logit less the logarithm of the sum of all. */
INLINE void write_logs(const Job *job, const Group *g, const NodeScratch *s) {
    const int64_t n = job->nodes;
    const vfloat never = (vfloat){0} - INFINITY;
    vfloat all;
    narrow(&g->all, &all);
    logarithm(&all); /* as every node's, so that a root has exactly 0 */
    for (int r = 0; r < g->count; r++) {
        float *out = job->log_probs + g->from[r] * n;
        const float *x = g->x[r], top = g->top[r], whole = all[r];
        for (int64_t v = 0; g->quick[r] && v < n; v++) out[v] = (x[v] - top) - whole;
    }
    for (int64_t i = 1; i <= s->at.inner; i++) {
        vfloat sum = s->inner[i].whole;
        const vint impossible = sum == 0.0f;
        logarithm(&sum);
        sum -= all;
        choose(&impossible, &never, &sum, &sum);
        for (int r = 0; r < g->count; r++)
            if (g->quick[r]) job->log_probs[g->from[r] * n + s->at.list[INNER][i - 1].node] = sum[r];
    }
}

/* The quick samples of a group, all in one. */
INLINE void quick_group(const Job *job, Group *g, double scale, NodeScratch *s) {
    sum_subtrees(job, g, s);
    drop_nan(g, &g->all);
    if (job->log_probs) {
        write_logs(job, g, s);
        return;
    }
    for (int r = 0; r < g->count && job->target; r++)
        if (g->quick[r]) add_row(job, g, r, s);
    for (int r = 0; r < GROUP; r++) g->loss[r] = g->mass[r] * log(g->all[r]) - g->loss[r];
    if (job->grad) gradients_down(job, g, scale, s);
}

static void dense_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes;
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    const double mass = job->dense && !job->dense_stride ? total_of(job->dense, n) : 0;
    NodeScratch s = {0};
    open_places(job->places, &s.at);
    share->failed = !(s.inner = cells(s.at.inner + 1, sizeof(Inner)));
    for (int64_t b = share->from; b < share->to && !share->failed; b += GROUP) {
        const int count = share->to - b < GROUP ? (int)(share->to - b) : GROUP;
        Group g;
        set_group(job, b, count, &g);
        int any = 0;
        for (int r = 0; r < count; r++) any |= g.quick[r];
        for (int r = 0; r < GROUP; r++) g.mass[r] = r < count && job->dense_stride ? total_of(g.t[r], n) : mass;
        if (any) quick_group(job, &g, scale, &s);
        for (int r = 0; r < count && !share->failed; r++) {
            float *grad = job->grad ? job->grad + (b + r) * n : NULL;
            const int ignored = job->target && job->target[b + r] == job->ignore;
            share->failed = !g.quick[r] && !ignored && !careful_scratch(&s, n);
            if (share->failed) break;
            if (job->log_probs) {
                if (g.quick[r]) continue;
                careful_sums(job, g.x[r], &s);
                for (int64_t v = 0; v < n; v++) job->log_probs[(b + r) * n + v] = (float)careful_log(&s, v, n);
            } else if (ignored) {
                job->loss[b + r] = (float)(0.0 * scale); /* nan where the mean has nothing to divide by */
                if (grad) memset(grad, 0, (size_t)n * sizeof(float));
            } else {
                job->loss[b + r] =
                    (float)(scale * (g.quick[r] ? g.loss[r] : careful_row(job, g.x[r], b + r, &s, scale, grad)));
            }
        }
    }
    free(s.inner), free(s.shift), free(s.own), free(s.above);
}

/* ------------------------------------------------------------------------------------------ on a DAG */

/* DAGs: a node's sum is over the list of all below it, itself included.

   Eight samples side by side: an exponential for each node and sample, and each pair (ancestor, descendant) costs one vector
   addition on the way up and one on the way down. Only ancestors that some sample of the group has a target at are visited,
   or all where targets are dense. A row whose logits range too far goes the careful way: every sum has its own shift. */

typedef struct {
    vfloat *term, *target, *ratio; /* (nodes) */
    vdouble *sum;                   /* (nodes) of the ancestors that count */
    int64_t *need;             /* the ancestors that count */
    uint8_t *marked;           /* (nodes + 8) while they are collected */
    double *wide;              /* (nodes) the careful way, made when first needed */
    int64_t count;
} DagScratch;

INLINE void need_node(DagScratch *s, int64_t v) {
    if (s->marked[v]) return;
    s->marked[v] = 1;
    s->target[v] = (vfloat){0};
}

/* List the marked nodes in their order, so that a sample's sums do not depend on the samples beside it, and unmark them. */
INLINE void list_marked(DagScratch *s, int64_t nodes) {
    s->count = 0;
    for (int64_t start = 0; start < nodes; start += 8) {
        uint64_t eight; /* most are 0 together */
        memcpy(&eight, s->marked + start, 8);
        if (!eight) continue;
        for (int64_t v = start; v < start + 8; v++)
            if (s->marked[v]) s->need[s->count++] = v;
        memset(s->marked + start, 0, 8);
    }
}

/* The targets of a group and the nodes they are at. */
INLINE void dag_targets(const Job *job, const Group *g, DagScratch *s) {
    if (job->dense)
        for (int64_t v = 0; v < job->nodes; v++) {
            need_node(s, v);
            if (!job->dense_stride) s->target[v] = (vfloat){0} + g->t[0][v];
            else for (int r = 0; r < GROUP; r++) s->target[v][r] = g->t[r][v];
        }
    for (int r = 0; r < g->count && job->target; r++) {
        if (!g->quick[r]) continue;
        const int64_t y = job->target[g->from[r]];
        for (int64_t e = job->start[y]; e < job->start[y + 1]; e++) {
            need_node(s, job->node[e]);
            s->target[job->node[e]][r] += (float)job->value[e];
        }
    }
    list_marked(s, job->nodes);
}

/* Adds sum_v T_v log S_v of a tile to the total. */
INLINE void add_logs(const vfloat *sum, const vfloat *target, int64_t count, vdouble *total) {
    vfloat part = {0};
    for (int64_t i = 0; i < count; i++) {
        vfloat v = sum[i];
        logarithm(&v);
        part += v * target[i];
    }
    vdouble wide;
    widen(&part, &wide);
    *total += wide;
}

INLINE void sum_below(const Job *job, int64_t v, const vfloat *term, vdouble *sum) {
    const int32_t *member = job->member + job->first[v];
    const int64_t count = job->first[v + 1] - job->first[v];
    *sum = (vdouble){0};
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t end = start + BLOCK < count ? start + BLOCK : count;
        vfloat even = {0}, odd = {0};
        vdouble wide;
        int64_t i = start;
        for (; i + 2 <= end; i += 2) {
            even += term[member[i]];
            odd += term[member[i + 1]];
        }
        if (i < end) even += term[member[i]];
        even += odd;
        widen(&even, &wide);
        *sum += wide;
    }
}

INLINE void dag_group(const Job *job, Group *g, double scale, DagScratch *s) {
    const int64_t n = job->nodes;
    float *const nowhere[GROUP] = {0};
    vdouble all = {0};
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        exp_cells(g->x, start, width, g->top, nowhere, NULL, NULL, s->term + start);
        vfloat part = {0};
        vdouble wide;
        for (int64_t c = 0; c < width; c++) part += s->term[start + c];
        widen(&part, &wide);
        all += wide;
    }
    drop_nan(g, &all);
    dag_targets(job, g, s);
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t v = s->need[i];
        vdouble target;
        sum_below(job, v, s->term, &s->sum[i]);
        widen(&s->target[v], &target);
        g->mass += target;
        if (job->dense) narrow(&s->sum[i], &s->ratio[i]); /* all nodes, in their order */
        else for (int r = 0; r < GROUP; r++)
            if (target[r] != 0) g->loss[r] -= target[r] * log(s->sum[i][r] / all[r]);
    }
    if (job->dense) {
        vdouble logs = {0};
        for (int64_t start = 0; start < n; start += TILE)
            add_logs(s->ratio + start, s->target + start, start + TILE < n ? TILE : n - start, &logs);
        for (int r = 0; r < GROUP; r++) g->loss[r] = g->mass[r] * log(all[r]) - logs[r];
    }
    if (!job->grad) return;
    for (int64_t v = 0; v < n; v++) s->ratio[v] = (vfloat){0};
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t v = s->need[i];
        vfloat sum;
        narrow(&s->sum[i], &sum);
        const vfloat ratio = s->target[v] / sum;
        for (int64_t m = job->first[v]; m < job->first[v + 1]; m++) s->ratio[job->member[m]] += ratio;
    }
    const vdouble share = g->mass / all;
    vfloat whole;
    narrow(&share, &whole);
    float row[GROUP][TILE];
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        for (int64_t v = start; v < start + width; v++) s->term[v] *= (float)scale * (whole - s->ratio[v]);
        to_rows(s->term + start, width, row);
        for (int r = 0; r < g->count; r++)
            if (g->quick[r]) memcpy(job->grad + g->from[r] * n + start, row[r], (size_t)width * sizeof(float));
    }
}

/* The log-sum-exp below a node with its own shift. */
INLINE Lse careful_below(const Job *job, const float *x, int64_t v) {
    double top = -INFINITY, sum = 0;
    for (int64_t m = job->first[v]; m < job->first[v + 1]; m++) {
        const float z = x[job->member[m]];
        if (z != z || z == INFINITY) return (Lse){0, NAN};
        top = z > top ? z : top;
    }
    for (int64_t m = job->first[v]; top != -INFINITY && m < job->first[v + 1]; m++) sum += exp(x[job->member[m]] - top);
    return (Lse){top, log(sum)};
}

INLINE Lse careful_all(const float *x, int64_t n) {
    double top = -INFINITY, sum = 0;
    for (int64_t v = 0; v < n; v++) {
        if (x[v] != x[v] || x[v] == INFINITY) return (Lse){0, NAN};
        top = x[v] > top ? x[v] : top;
    }
    for (int64_t v = 0; top != -INFINITY && v < n; v++) sum += exp(x[v] - top);
    return (Lse){top, sum == 0 ? NAN : log(sum)}; /* nothing is possible: nan, as in torch */
}

INLINE double careful_dag_row(const Job *job, const float *x, int64_t b, double scale, float *grad, double *wide) {
    const int64_t n = job->nodes;
    const Lse all = careful_all(x, n);
    double loss = 0, mass = 0;
    memset(wide, 0, (size_t)n * sizeof(double));
    const int64_t y = job->target ? job->target[b] : 0, begin = job->target ? job->start[y] : 0;
    const int64_t entries = job->target ? job->start[y + 1] - begin : 0;
    for (int64_t i = 0; i < entries + (job->dense ? n : 0); i++) {
        const int64_t v = i < entries ? job->node[begin + i] : i - entries;
        const double value = i < entries ? job->value[begin + i] : job->dense[b * job->dense_stride + v];
        if (value == 0) continue; /* 0 log 0 = 0 */
        const Lse below = careful_below(job, x, v);
        mass += value;
        loss -= value * (below.shift == -INFINITY && all.log_sum == all.log_sum ? -INFINITY : lse_less(&below, &all));
        for (int64_t m = job->first[v]; grad && m < job->first[v + 1]; m++) {
            const Lse at = {x[job->member[m]], 0};
            if (at.shift != -INFINITY) wide[job->member[m]] += value * exp(lse_less(&at, &below));
        }
    }
    for (int64_t v = 0; grad && v < n; v++) {
        const Lse at = {x[v], 0};
        grad[v] = (float)(scale * (exp(lse_less(&at, &all)) * mass - wide[v]));
    }
    return loss;
}

static void dag_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes;
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    DagScratch s = {.term = cells(n, sizeof(vfloat)), .target = cells(n, sizeof(vfloat)), .ratio = cells(n, sizeof(vfloat)),
                    .sum = cells(n, sizeof(vdouble)), .need = cells(n, sizeof(int64_t)), .marked = calloc((size_t)n + 8, 1)};
    share->failed = !s.term || !s.target || !s.ratio || !s.sum || !s.need || !s.marked;
    for (int64_t b = share->from; b < share->to && !share->failed; b += GROUP) {
        const int count = share->to - b < GROUP ? (int)(share->to - b) : GROUP;
        Group g;
        set_group(job, b, count, &g);
        int any = 0;
        for (int r = 0; r < count; r++) any |= g.quick[r];
        if (any) dag_group(job, &g, scale, &s);
        for (int r = 0; r < count && !share->failed; r++) {
            float *grad = job->grad ? job->grad + (b + r) * n : NULL;
            double loss = g.loss[r];
            if (job->target && job->target[b + r] == job->ignore) {
                loss = 0;
                if (grad) memset(grad, 0, (size_t)n * sizeof(float));
            } else if (!g.quick[r]) {
                if (!s.wide) s.wide = malloc((size_t)n * sizeof(double));
                share->failed = !s.wide;
                if (s.wide) loss = careful_dag_row(job, g.x[r], b + r, scale, grad, s.wide);
            }
            job->loss[b + r] = (float)(scale * loss); /* nan where the mean has nothing to divide by */
        }
    }
    free(s.term), free(s.target), free(s.ratio), free(s.sum), free(s.need), free(s.marked), free(s.wide);
}
