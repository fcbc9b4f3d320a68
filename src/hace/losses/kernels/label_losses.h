/* Losses without a table: conditional softmax among siblings, and losses of the distances from the label. */

/* Conditional softmax: only the groups of siblings along the label's path count, whatever the size of the tree. */

/* One group: adds - log P(v | parent) and writes its gradient. */
INLINE double sibling_group(const Job *job, const float *z, int64_t v, double scale, float *grad, float *x, float *term) {
    const int64_t up = job->parent[v] < job->nodes ? job->parent[v] + 1 : 0; /* 0: the tops */
    const int32_t *member = job->member + job->first[up];
    const int64_t count = job->first[up + 1] - job->first[up];
    for (int64_t i = 0; i < count; i++) x[i] = z[member[i]];
    float top = largest(x, count);
    const int empty = top == -INFINITY && !has_nan(x, count); /* a group of -inf alone has no sum to divide by */
    if (empty) top = 0;
    const double sum = sum_exp(x, count, top, term);
    if (grad) {
        const float factor = empty ? 0 : (float)(scale / sum);
        for (int64_t i = 0; i < count; i++) grad[member[i]] = term[i] * factor;
        grad[v] -= (float)scale;
    }
    return (empty ? 0 : log(sum)) - (z[v] - (double)top);
}

static void sibling_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes;
    int64_t widest = 0;
    for (int64_t g = 0; g <= n; g++) {
        const int64_t width = job->first[g + 1] - job->first[g];
        widest = width > widest ? width : widest;
    }
    float *x = malloc((size_t)(widest + 1) * sizeof *x), *term = malloc((size_t)(widest + 1) * sizeof *term);
    share->failed = !x || !term;
    for (int64_t b = share->from; b < share->to && !share->failed; b++) {
        float *grad = job->grad ? job->grad + b * n : NULL;
        const int64_t y = job->target[b];
        const double by = scale_of(job, y);
        if (grad) memset(grad, 0, (size_t)n * sizeof(float));
        double loss = 0;
        for (int64_t v = y == job->ignore ? n : job->node[y]; v < n && !(job->rooted && v == 0); v = job->parent[v])
            loss += sibling_group(job, job->z + b * n, v, by, grad, x, term);
        job->loss[b] = (float)(by * loss);
    }
    free(x), free(term);
}

/* ------------------------------------------------------------------------------------------ distances */

/* Losses of the classes' probabilities and their distances from the label.

   The classes below b_j that are not below b_{j-1} form a group, that of one lowest common ancestor (LCA): they are equally far from the label (up to their own depth,
   by edges), and in preorder they are two ranges. So a row of distances is filled group by group, and no matrix exists. */

enum { SOFT_LABELS, SIMILARITY, EXPECTED };

INLINE void fill(const Job *job, int64_t from, int64_t to, double value, float *out) {
    if (!job->column && !job->leaf) {
        for (int64_t i = from; i < to; i++) out[i] = (float)value;
        return;
    }
    for (int64_t i = from; i < to; i++)
        out[job->column ? job->column[i] : i] = (float)(value + (job->leaf ? job->leaf[i] : 0));
}

/* Distances from label y to all classes, in the order of the columns. */
INLINE void distances(const Job *job, int64_t y, float *out) {
    const int64_t begin = job->start[y], k = job->start[y + 1] - begin;
    const int64_t *node = job->node + begin;
    int64_t low = job->low[node[0]], high = low;
    for (int64_t j = 0; j <= k; j++) {
        const int64_t next_low = j < k ? job->low[node[j]] : 0, next_high = j < k ? job->high[node[j]] : job->cols;
        const double value = job->own[y] + (j < k ? job->at[node[j]] : job->outside);
        fill(job, next_low, low, value, out);
        fill(job, high, next_high, value, out);
        low = next_low;
        high = next_high;
    }
    if (job->itself[y] >= 0) out[job->itself[y]] = 0;
}

/* exp(strength * distance) in place of the distances; returns their sum. */
INLINE double closeness(float *d, int64_t n, float strength) {
    for (int64_t i = 0; i < n; i++) d[i] *= strength;
    float copy[BLOCK];
    double sum = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t width = start + BLOCK < n ? BLOCK : n - start;
        sum += sum_exp(d + start, width, 0, copy);
        memcpy(d + start, copy, (size_t)width * sizeof(float));
    }
    return sum;
}

/* sum_i w_i x_i in blocks, where 0 times anything is 0. */
INLINE double weighted(const float *w, const float *x, int64_t n, float shift) {
    double sum = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t end = start + BLOCK < n ? start + BLOCK : n;
        int64_t i = start;
        vfloat partial = {0}, a, b;
        for (; i + LANES <= end; i += LANES) {
            load(w + i, &a);
            load(x + i, &b);
            const vint none = a == 0;
            b = a * (b - shift);
            partial = partial + (vfloat)((vint)b & ~none);
        }
        for (; i < end; i++) sum += w[i] == 0 ? 0 : w[i] * (x[i] - shift);
        sum += total(&partial);
    }
    return sum;
}

INLINE double soft_label_row(const Job *job, const float *z, float *d, float *term, double scale, float *grad) {
    const int64_t n = job->cols;
    const double whole = closeness(d, n, (float)job->strength);
    const float top = largest(z, n);
    const double all = sum_exp(z, n, top, term);
    const float p = (float)(scale / all), t = (float)(scale / whole);
    for (int64_t i = 0; grad && i < n; i++) grad[i] = term[i] * p - d[i] * t;
    return log(all) - weighted(d, z, n, top) / whole;
}

INLINE double similarity_row(const Job *job, const float *z, float *d, float *term, float *near, double scale, float *grad) {
    const int64_t n = job->cols;
    const float top = largest(z, n), strength = (float)job->strength; /* log r */
    const double all = sum_exp(z, n, top, term);
    for (int64_t i = 0; i < n; i++) d[i] = (z[i] - top) + (d[i] == 0 ? 0 : strength * d[i]);
    const float best = largest(d, n);
    if (best == -INFINITY && !has_nan(d, n)) { /* nothing similar is possible */
        for (int64_t i = 0; grad && i < n; i++) grad[i] = 0;
        return INFINITY;
    }
    const double similar = sum_exp(d, n, best, near);
    const float p = (float)(scale / all), t = (float)(scale / similar);
    for (int64_t i = 0; grad && i < n; i++) grad[i] = term[i] * p - near[i] * t;
    return log(all) - (best + log(similar));
}

INLINE double expected_row(const Job *job, const float *z, const float *d, float *term, double scale, float *grad) {
    const int64_t n = job->cols;
    const double all = sum_exp(z, n, largest(z, n), term), loss = weighted(d, term, n, 0) / all;
    const float p = (float)(scale / all), mean = (float)loss;
    for (int64_t i = 0; grad && i < n; i++) grad[i] = (term[i] * p) * (d[i] - mean);
    return all == all ? loss : NAN;
}

static void group_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->cols;
    float *d = malloc((size_t)n * sizeof *d), *term = malloc((size_t)n * sizeof *term), *near = malloc((size_t)n * sizeof *near);
    share->failed = !d || !term || !near;
    for (int64_t b = share->from; b < share->to && !share->failed; b++) {
        float *grad = job->grad ? job->grad + b * n : NULL;
        const float *z = job->z + b * n;
        const int64_t y = job->target[b];
        const double by = scale_of(job, y);
        double loss = 0;
        if (y == job->ignore) {
            if (grad) memset(grad, 0, (size_t)n * sizeof(float));
        } else {
            distances(job, y, d);
            loss = job->kind == SOFT_LABELS  ? soft_label_row(job, z, d, term, by, grad)
                   : job->kind == SIMILARITY ? similarity_row(job, z, d, term, near, by, grad)
                                             : expected_row(job, z, d, term, by, grad);
        }
        job->loss[b] = (float)(by * loss);
    }
    free(d), free(term), free(near);
}
