/* Targets at all nodes of a tree: label smoothing, soft labels, and log q* itself.

   Backward, every subtree's sum S_v in units of exp(the row's largest logit); forward, a_v = sum of T_u / S_u over v and all
   above it, so that the gradient is term_v * (mass / S_all - a_v). Sums of inner nodes are kept between the passes, those of
   leaves are their own terms, and terms are computed again rather than kept: a large tree needs little room beside its
   gradient. Logits within SAFE_RANGE of their row's largest share one shift; a row beyond that goes the careful way, where
   every subtree has its own shift. */

typedef struct {
    d8 *stack;  /* (levels + 2) */
    v8 *ratio, *factor; /* (levels + 2) */
    v8 *sum;    /* (inner nodes) */
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
    int64_t low[GROUP], high[GROUP];  /* entries of its sparse row at inner nodes, from the label upward ... */
    int64_t next[GROUP];              /* ... and the one that comes next */
    d8 mass, loss;
} Group;

INLINE void set_group(const Job *job, int64_t b, int count, Group *g) {
    const int64_t n = job->nodes;
    *g = (Group){.count = count};
    for (int r = 0; r < GROUP; r++) { /* a group that is not full repeats its first sample */
        const int64_t i = b + (r < count ? r : 0);
        g->from[r] = i;
        g->x[r] = job->z + i * n;
        g->t[r] = job->dense ? job->dense + i * job->dense_stride : NULL;
        if (r >= count) g->top[r] = g->top[0];
        else if (job->log_probs) g->quick[r] = close_or_impossible(g->x[r], n, &g->top[r]);
        else g->quick[r] = close_together(g->x[r], n, &g->top[r]) && !(job->target && job->target[i] == job->ignore);
    }
}

/* A row whose sum is NaN holds one: it goes the careful way. */
INLINE void drop_nan(Group *g, const d8 *all) {
    for (int r = 0; r < g->count; r++) g->quick[r] &= (*all)[r] == (*all)[r];
}

/* Adds the sparse row of a sample to its mass, and the part at the label, if that is a leaf, to its loss. */
INLINE void start_row(const Job *job, Group *g, int r) {
    const int64_t y = job->target[g->from[r]];
    g->low[r] = job->start[y];
    g->high[r] = job->start[y + 1];
    for (int64_t e = g->low[r]; e < g->high[r]; e++) g->mass[r] += job->value[e];
    if (g->low[r] == g->high[r] || is_inner(job->level, job->node[g->low[r]], job->nodes)) return;
    g->loss[r] = job->value[g->low[r]] * (g->x[r][job->node[g->low[r]]] - g->top[r]);
    g->low[r]++;
}

/* The next node with entries: in a pass forward the first, or n; in a pass backward the last, or -1. */
INLINE int64_t next_stop(const Job *job, const Group *g, int forward) {
    int64_t stop = forward ? job->nodes : -1;
    for (int r = 0; r < g->count; r++) {
        if (g->next[r] < g->low[r] || g->next[r] >= g->high[r]) continue;
        const int64_t v = job->node[g->next[r]];
        stop = forward == (v < stop) ? v : stop;
    }
    return stop;
}

INLINE int64_t first_stop(const Job *job, Group *g, int forward) {
    for (int r = 0; r < GROUP; r++) g->next[r] = forward ? g->high[r] - 1 : g->low[r];
    return next_stop(job, g, forward);
}

/* Adds the entries at a stop to the targets there, and returns the next stop. */
INLINE int64_t take_entries(const Job *job, Group *g, int64_t stop, int forward, v8 *target) {
    for (int r = 0; r < g->count; r++) {
        if (g->next[r] < g->low[r] || g->next[r] >= g->high[r] || job->node[g->next[r]] != stop) continue;
        (*target)[r] += (float)job->value[g->next[r]];
        g->next[r] += forward ? -1 : 1;
    }
    return next_stop(job, g, forward);
}

/* Adds sum_v T_v over a tile to the mass, and sum_v T_v (x_v - top) over its leaves to the loss. */
INLINE void add_leaves(Group *g, int64_t start, int64_t width, const float *is_leaf) {
    for (int r = 0; r < g->count; r++) {
        const float *x = g->x[r] + start, *t = g->t[r] + start;
        vfloat mass = {0}, loss = {0}, a, b, leaf;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            load(t + i, &a);
            load(x + i, &b);
            load(is_leaf + i, &leaf);
            mass += a;
            loss += (a * leaf) * (b - g->top[r]);
        }
        g->mass[r] += total(&mass);
        g->loss[r] += total(&loss);
        for (; i < width; i++) {
            g->mass[r] += t[i];
            g->loss[r] += (t[i] * is_leaf[i]) * (x[i] - g->top[r]);
        }
    }
}

/* Backward: sums of subtrees, that of all in stack[0]; the mass of the targets, and sum_v T_v log S_v as the loss. A leaf's sum is
   its own term, whose logarithm is at hand. With a gradient the terms are left in its rows. Returns how many inner nodes. */
INLINE int64_t sum_subtrees(const Job *job, Group *g, int64_t levels, NodeScratch *s) {
    const int64_t n = job->nodes;
    const int with_loss = !job->log_probs, shared = !job->dense_stride;
    v8 tile[TILE], target[TILE], sum, run = {0};
    d8 wide;
    float is_leaf[TILE], *rows[GROUP];
    int64_t inner = 0, stop = first_stop(job, g, 0);
    int32_t run_level = 0;
    for (int r = 0; r < GROUP; r++) rows[r] = job->grad && g->quick[r] ? job->grad + g->from[r] * n : NULL;
    for (int64_t l = 0; l <= levels + 1; l++) s->stack[l] = (d8){0};
    for (int64_t start = (n - 1) / TILE * TILE; start >= 0; start -= TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        v8 logs = {0};
        exp_cells(g->x, start, width, g->top, rows, tile);
        if (with_loss && !shared) to_cells(g->t, start, width, target);
        for (int64_t c = width - 1; c >= 0; c--) {
            const int64_t v = start + c;
            const int32_t l = job->level[v];
            const int leaf = !is_inner(job->level, v, n);
            is_leaf[c] = (float)leaf;
            if (leaf && l == run_level) { /* leaves side by side, one addition each */
                run += tile[c];
                continue;
            }
            widen(&run, &wide);
            s->stack[run_level] += wide;
            run = leaf ? tile[c] : (v8){0};
            run_level = l;
            if (leaf) continue;
            close_subtree(s->stack, l, &tile[c], &wide);
            narrow(&wide, &sum);
            s->sum[inner++] = sum;
            if (!with_loss) continue;
            v8 t = shared ? (v8){0} + g->t[0][v] : target[c];
            if (stop == v) stop = take_entries(job, g, stop, 0, &t);
            logarithm(&sum);
            logs += sum * t;
        }
        widen(&run, &wide); /* at the end of a tile, before floats lose digits */
        s->stack[run_level] += wide;
        run = (v8){0};
        if (!with_loss) continue;
        widen(&logs, &wide);
        g->loss += wide;
        add_leaves(g, start, width, is_leaf);
    }
    return inner;
}

/* Forward: the gradients, from the terms in their rows. */
INLINE void gradients_down(const Job *job, Group *g, double scale, int64_t inner, NodeScratch *s) {
    const int64_t n = job->nodes;
    const int shared = !job->dense_stride;
    const float by = (float)scale;
    v8 tile[TILE], target[TILE], whole;
    float row[GROUP][TILE], *terms[GROUP], *any = NULL;
    const d8 share = g->mass / s->stack[0];
    narrow(&share, &whole);
    s->ratio[0] = (v8){0};
    s->factor[0] = by * whole;
    for (int r = 0; r < g->count; r++)
        if (g->quick[r]) any = job->grad + g->from[r] * n;
    for (int r = 0; r < GROUP; r++) terms[r] = g->quick[r] ? job->grad + g->from[r] * n : any;
    if (!any) return;
    int64_t stop = first_stop(job, g, 1);
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        to_cells((const float *const *)terms, start, width, tile);
        if (!shared) to_cells(g->t, start, width, target);
        for (int64_t c = 0; c < width; c++) {
            const int64_t v = start + c;
            const int32_t l = job->level[v];
            v8 t = shared ? (v8){0} + g->t[0][v] : target[c];
            if (!is_inner(job->level, v, n)) {
                tile[c] = tile[c] * s->factor[l] - by * t;
                continue;
            }
            if (stop == v) stop = take_entries(job, g, stop, 1, &t);
            s->ratio[l + 1] = s->ratio[l] + t / s->sum[--inner];
            s->factor[l + 1] = by * (whole - s->ratio[l + 1]);
            tile[c] *= s->factor[l + 1];
        }
        to_rows(tile, width, row);
        for (int r = 0; r < g->count; r++)
            if (g->quick[r]) memcpy(terms[r] + start, row[r], (size_t)width * sizeof(float));
    }
    for (int r = 0; r < g->count && job->target; r++) { /* labels that are leaves */
        const int64_t e = g->low[r] - 1;
        if (g->quick[r] && e >= job->start[job->target[g->from[r]]]) terms[r][job->node[e]] -= by * (float)job->value[e];
    }
}

/* log q* of every node, row by row: a leaf's is its logit less the logarithm of the sum of all. */
INLINE void write_logs(const Job *job, const Group *g, int64_t inner, NodeScratch *s) {
    const int64_t n = job->nodes;
    const v8 never = (v8){0} - INFINITY;
    v8 all;
    narrow(&s->stack[0], &all);
    logarithm(&all); /* as every node's, so that a root has exactly 0 */
    for (int r = 0; r < g->count; r++) {
        float *out = job->log_probs + g->from[r] * n;
        for (int64_t v = 0; g->quick[r] && v < n; v++) out[v] = (g->x[r][v] - g->top[r]) - all[r];
    }
    for (int64_t v = 0; v < n; v++) {
        if (!is_inner(job->level, v, n)) continue;
        v8 sum = s->sum[--inner];
        const vint impossible = sum == 0.0f;
        logarithm(&sum);
        sum -= all;
        choose(&impossible, &never, &sum, &sum);
        for (int r = 0; r < g->count; r++)
            if (g->quick[r]) job->log_probs[g->from[r] * n + v] = sum[r];
    }
}

/* The quick samples of a group, all in one. */
INLINE void quick_group(const Job *job, Group *g, double scale, int64_t levels, NodeScratch *s) {
    for (int r = 0; r < g->count && job->target; r++)
        if (g->quick[r]) start_row(job, g, r);
    const int64_t inner = sum_subtrees(job, g, levels, s);
    drop_nan(g, &s->stack[0]);
    if (job->log_probs) {
        write_logs(job, g, inner, s);
        return;
    }
    for (int r = 0; r < GROUP; r++) g->loss[r] = g->mass[r] * log(s->stack[0][r]) - g->loss[r];
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
                     .factor = cells(levels + 2, sizeof(v8)), .sum = cells(count_inner(job), sizeof(v8))};
    share->failed = !s.stack || !s.ratio || !s.factor || !s.sum;
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
    free(s.stack), free(s.ratio), free(s.factor), free(s.sum), free(s.shift), free(s.own), free(s.above);
}
