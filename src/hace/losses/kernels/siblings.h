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

EVERY_CPU static void sibling_rows(Share *share) {
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
