/* Targets at all nodes of a tree: label smoothing, soft labels, and log q* itself.

   Backward, every subtree's sum S_v in units of exp(the row's largest logit); forward, a_v = sum of T_u / S_u over v and all
   above it, so that the gradient is term_v * (mass / S_all - a_v). Sums of inner nodes are kept between the passes, those of
   leaves are their own terms, and terms are computed again rather than kept: a large tree needs little room beside its
   gradient. Logits within SAFE_RANGE of their row's largest share one shift; a row beyond that goes the careful way, where
   every subtree has its own shift. */

typedef struct {
    d8 *stack;  /* (levels + 2) */
    v8 *ratio;  /* (levels + 2) */
    v8 *sum;    /* (inner nodes) */
    double *shift, *own, *above; /* (nodes + 1) the careful way, made when first needed */
} NodeScratch;

INLINE int within_range(const float *x, int64_t n, float top) {
    const float least = top - SAFE_RANGE;
    int close = fabsf(top) <= 3e38f;
    for (int64_t start = 0; close && start < n; start += BLOCK) {
        int64_t end = start + BLOCK < n ? start + BLOCK : n;
        for (int64_t i = start; i < end; i++) close &= x[i] >= least;
    }
    return close;
}

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
    int64_t next[GROUP], from[GROUP]; /* entries of the sparse row that are to come, and its first */
    int quick[GROUP], count;
    d8 mass, loss;
} Group;

/* The targets of a tile of nodes. `forward` says whether sparse entries come in the order of the nodes or against it. */
INLINE void targets_of(const Job *job, Group *g, int64_t start, int64_t width, int forward, v8 *tile) {
    if (job->dense_stride) to_cells(g->t, start, width, tile);
    else for (int64_t c = 0; c < width; c++) tile[c] = (v8){0} + g->t[0][start + c];
    for (int r = 0; r < g->count && job->target; r++) {
        if (!g->quick[r]) continue;
        const int64_t end = job->start[job->target[g->from[r]] + 1], begin = job->start[job->target[g->from[r]]];
        int64_t *e = &g->next[r];
        if (forward) /* from the top down: the row's last entry first */
            for (; *e >= begin && job->node[*e] < start + width; (*e)--) tile[job->node[*e] - start][r] += (float)job->value[*e];
        else
            for (; *e < end && job->node[*e] >= start; (*e)++) tile[job->node[*e] - start][r] += (float)job->value[*e];
    }
}

/* Adds sum_v T_v log S_v of a tile to the total. */
INLINE void add_logs(const v8 *sum, const v8 *target, int64_t count, d8 *total) {
    v8 even = {0}, odd = {0};
    for (int64_t i = 0; i < count; i += 2) {
        const int64_t j = i + 1 < count ? i + 1 : i;
        vfloat v;
        memcpy(&v, &sum[i], sizeof sum[i]);
        memcpy((float *)&v + GROUP, &sum[j], sizeof sum[j]);
        logarithm(&v);
        v8 first, second;
        memcpy(&first, &v, sizeof first);
        memcpy(&second, (float *)&v + GROUP, sizeof second);
        even += first * target[i];
        if (j > i) odd += second * target[j];
    }
    d8 wide;
    even += odd;
    widen(&even, &wide);
    *total += wide;
}

/* Backward: sums of subtrees, the loss but for the sum of all, and the mass of the targets. Returns how many inner nodes. */
INLINE int64_t sum_subtrees(const Job *job, Group *g, int64_t levels, NodeScratch *s) {
    const int64_t n = job->nodes;
    v8 tile[TILE], target[TILE], sums[TILE];
    int64_t inner = 0;
    for (int64_t l = 0; l <= levels + 1; l++) s->stack[l] = (d8){0};
    for (int64_t start = (n - 1) / TILE * TILE; start >= 0; start -= TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        exp_cells(g->x, start, width, g->top, tile);
        if (!job->log_probs) targets_of(job, g, start, width, 0, target);
        v8 mass = {0};
        for (int64_t c = width - 1; c >= 0; c--) {
            d8 sum;
            close_subtree(s->stack, job->level[start + c], &tile[c], &sum);
            narrow(&sum, &sums[c]);
            if (!job->log_probs) {
                s->sum[inner] = sums[c];
                inner += is_inner(job->level, start + c, n);
                mass += target[c];
            }
        }
        if (job->log_probs) {
            float *lane = (float *)sums, row[GROUP][TILE];
            for (int64_t i = 0; i < width * GROUP; i += LANES) { /* a tile has room for the last, partial vector */
                vfloat v;
                load(lane + i, &v);
                logarithm(&v);
                store(lane + i, &v);
            }
            to_rows(sums, width, row);
            for (int r = 0; r < g->count; r++)
                if (g->quick[r]) memcpy(job->log_probs + (g->from[r]) * n + start, row[r], (size_t)width * sizeof(float));
        } else {
            d8 wide;
            widen(&mass, &wide);
            g->mass += wide;
            add_logs(sums, target, width, &g->loss);
        }
    }
    return inner;
}

/* Forward: the gradients. */
INLINE void gradients_down(const Job *job, Group *g, double scale, int64_t inner, NodeScratch *s) {
    const int64_t n = job->nodes;
    v8 tile[TILE], target[TILE], whole;
    float row[GROUP][TILE];
    const d8 share = g->mass / s->stack[0];
    narrow(&share, &whole);
    s->ratio[0] = (v8){0};
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        exp_cells(g->x, start, width, g->top, tile);
        targets_of(job, g, start, width, 1, target);
        for (int64_t c = 0; c < width; c++) {
            const int32_t l = job->level[start + c];
            if (is_inner(job->level, start + c, n)) {
                s->ratio[l + 1] = s->ratio[l] + target[c] / s->sum[--inner];
                tile[c] = (float)scale * (tile[c] * (whole - s->ratio[l + 1]));
            } else {
                tile[c] = (float)scale * (tile[c] * (whole - s->ratio[l]) - target[c]);
            }
        }
        to_rows(tile, width, row);
        for (int r = 0; r < g->count; r++)
            if (g->quick[r]) memcpy(job->grad + g->from[r] * n + start, row[r], (size_t)width * sizeof(float));
    }
}

/* log S_v -> log q*_v, row by row. */
INLINE void less_all(const Job *job, const Group *g, const d8 *all) {
    v8 whole;
    vfloat logs;
    narrow(all, &whole);
    load_tail((const float *)&whole, GROUP, 1, &logs);
    logarithm(&logs); /* as every node's, so that a root has exactly 0 */
    for (int r = 0; r < g->count; r++) {
        float *out = job->log_probs + g->from[r] * job->nodes;
        const float log_all = ((float *)&logs)[r];
        for (int64_t v = 0; g->quick[r] && v < job->nodes; v++) out[v] -= log_all;
    }
}

INLINE void set_group(const Job *job, int64_t b, int count, Group *g) {
    const int64_t n = job->nodes;
    *g = (Group){.count = count};
    for (int r = 0; r < GROUP; r++) {
        const int64_t i = b + (r < count ? r : 0);
        g->from[r] = i;
        g->x[r] = job->z + i * n;
        g->t[r] = job->dense ? job->dense + i * job->dense_stride : NULL;
        const int counts = r < count && !(job->target && job->target[i] == job->ignore);
        g->top[r] = r < count ? largest(g->x[r], n) : g->top[0];
        g->quick[r] = counts && within_range(g->x[r], n, g->top[r]);
        if (g->quick[r] && job->target) g->next[r] = job->start[job->target[i]];
    }
}

/* The quick samples of a group, all in one. */
INLINE void quick_group(const Job *job, Group *g, double scale, int64_t levels, NodeScratch *s) {
    const int64_t inner = sum_subtrees(job, g, levels, s);
    if (job->log_probs) {
        less_all(job, g, &s->stack[0]);
        return;
    }
    for (int r = 0; r < GROUP; r++) g->loss[r] = g->mass[r] * log(s->stack[0][r]) - g->loss[r];
    for (int r = 0; r < g->count && job->target; r++)
        if (g->quick[r]) g->next[r] = job->start[job->target[g->from[r]] + 1] - 1;
    if (job->grad) gradients_down(job, g, scale, inner, s);
}

INLINE int64_t count_inner(const Job *job) {
    int64_t inner = 0;
    for (int64_t v = 0; v < job->nodes; v++) inner += is_inner(job->level, v, job->nodes);
    return inner;
}

EVERY_CPU static void dense_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes, levels = deepest(job->level, n);
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    NodeScratch s = {.stack = cells(levels + 2, sizeof(d8)), .ratio = cells(levels + 2, sizeof(v8)),
                     .sum = cells(job->log_probs ? 0 : count_inner(job), sizeof(v8))};
    share->failed = !s.stack || !s.ratio || !s.sum;
    for (int64_t b = share->from; b < share->to && !share->failed; b += GROUP) {
        const int count = share->to - b < GROUP ? (int)(share->to - b) : GROUP;
        Group g;
        set_group(job, b, count, &g);
        int any = 0;
        for (int r = 0; r < count; r++) any |= g.quick[r];
        if (any) quick_group(job, &g, scale, levels, &s);
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
    free(s.stack), free(s.ratio), free(s.sum), free(s.shift), free(s.own), free(s.above);
}
