/* DAGs: a node's sum is over the list of all below it, itself included.

   Eight samples side by side: an exponential for each node and sample, and each pair (ancestor, descendant) costs one vector
   addition on the way up and one on the way down. Only ancestors that some sample of the group has a target at are visited,
   or all where targets are dense. A row whose logits range too far goes the careful way: every sum has its own shift. */

typedef struct {
    v8 *term, *target, *ratio; /* (nodes) */
    d8 *sum;                   /* (nodes) of the ancestors that count */
    int64_t *need;             /* the ancestors that count */
    uint8_t *marked;           /* (nodes + 8) while they are collected */
    double *wide;              /* (nodes) the careful way, made when first needed */
    int64_t count;
} DagScratch;

INLINE void need_node(DagScratch *s, int64_t v) {
    if (s->marked[v]) return;
    s->marked[v] = 1;
    s->target[v] = (v8){0};
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
            if (!job->dense_stride) s->target[v] = (v8){0} + g->t[0][v];
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
INLINE void add_logs(const v8 *sum, const v8 *target, int64_t count, d8 *total) {
    v8 part = {0};
    for (int64_t i = 0; i < count; i++) {
        v8 v = sum[i];
        logarithm(&v);
        part += v * target[i];
    }
    d8 wide;
    widen(&part, &wide);
    *total += wide;
}

INLINE void sum_below(const Job *job, int64_t v, const v8 *term, d8 *sum) {
    const int32_t *member = job->member + job->first[v];
    const int64_t count = job->first[v + 1] - job->first[v];
    *sum = (d8){0};
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t end = start + BLOCK < count ? start + BLOCK : count;
        v8 even = {0}, odd = {0};
        d8 wide;
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
    d8 all = {0};
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        exp_cells(g->x, start, width, g->top, nowhere, NULL, NULL, s->term + start);
        v8 part = {0};
        d8 wide;
        for (int64_t c = 0; c < width; c++) part += s->term[start + c];
        widen(&part, &wide);
        all += wide;
    }
    drop_nan(g, &all);
    dag_targets(job, g, s);
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t v = s->need[i];
        d8 target;
        sum_below(job, v, s->term, &s->sum[i]);
        widen(&s->target[v], &target);
        g->mass += target;
        if (job->dense) narrow(&s->sum[i], &s->ratio[i]); /* all nodes, in their order */
        else for (int r = 0; r < GROUP; r++)
            if (target[r] != 0) g->loss[r] -= target[r] * log(s->sum[i][r] / all[r]);
    }
    if (job->dense) {
        d8 logs = {0};
        for (int64_t start = 0; start < n; start += TILE)
            add_logs(s->ratio + start, s->target + start, start + TILE < n ? TILE : n - start, &logs);
        for (int r = 0; r < GROUP; r++) g->loss[r] = g->mass[r] * log(all[r]) - logs[r];
    }
    if (!job->grad) return;
    for (int64_t v = 0; v < n; v++) s->ratio[v] = (v8){0};
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t v = s->need[i];
        v8 sum;
        narrow(&s->sum[i], &sum);
        const v8 ratio = s->target[v] / sum;
        for (int64_t m = job->first[v]; m < job->first[v + 1]; m++) s->ratio[job->member[m]] += ratio;
    }
    const d8 share = g->mass / all;
    v8 whole;
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

EVERY_CPU static void dag_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes;
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    DagScratch s = {.term = cells(n, sizeof(v8)), .target = cells(n, sizeof(v8)), .ratio = cells(n, sizeof(v8)),
                    .sum = cells(n, sizeof(d8)), .need = cells(n, sizeof(int64_t)), .marked = calloc((size_t)n + 8, 1)};
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
