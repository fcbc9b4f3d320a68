/* Path sums by themselves, one sample at a time: the pass down, and its transpose, the pass up. */

/* One sample with every class's logit at hand: sums in double, rounded once. With `centred`, a row whose largest is beyond
   NEAR has it taken off first: large outputs cost no digits. Classes are in preorder, or where `column` says. */
INLINE void sums_down(const Job *job, const float *restrict z, float *restrict out, double *restrict above) {
    const int64_t n = job->nodes;
    double top = 0;
    for (int again = 0; again < 2; again++) {
        double most = -INFINITY;
        above[0] = 0;
        for (int64_t v = 0, c = 0; v < n; v++) {
            const double *up = above + job->level[v];
            if (is_inner(job->level, v, n)) {
                above[job->level[v] + 1] = *up + (job->sharing == 0 ? 0 : job->sharing * z[v]);
                continue;
            }
            const double sum = z[v] + *up;
            most = sum > most ? sum : most;
            out[job->column ? job->column[c] : c] = (float)(sum - top);
            c++;
        }
        if (!job->centred || fabs(most) <= NEAR || most == -INFINITY) return;
        top = most;
    }
}

/* The transpose: a class's value goes to its own output, and `sharing` times it to those of its ancestors. */
INLINE void sums_up(const Job *job, const float *restrict grad, float *restrict out, double *restrict below, int64_t levels) {
    const int64_t n = job->nodes;
    for (int64_t l = 0; l <= levels + 1; l++) below[l] = 0;
    for (int64_t v = n - 1, c = job->classes - 1; v >= 0; v--) {
        double sum = below[job->level[v] + 1];
        if (!is_inner(job->level, v, n)) {
            sum = grad[job->column ? job->column[c] : c];
            out[v] = (float)sum;
            c--;
        } else {
            out[v] = (float)(job->sharing * sum);
        }
        below[job->level[v] + 1] = 0;
        below[job->level[v]] += sum;
    }
}

EVERY_CPU static void down_rows(Share *share) {
    const Job *job = share->job;
    double *above = malloc((size_t)(deepest(job->level, job->nodes) + 2) * sizeof *above);
    share->failed = !above;
    for (int64_t b = share->from; b < share->to && !share->failed; b++)
        sums_down(job, job->z + b * job->nodes, job->out + b * job->classes, above);
    free(above);
}

EVERY_CPU static void up_rows(Share *share) {
    const Job *job = share->job;
    const int64_t levels = deepest(job->level, job->nodes);
    double *below = malloc((size_t)(levels + 2) * sizeof *below);
    share->failed = !below;
    for (int64_t b = share->from; b < share->to && !share->failed; b++)
        sums_up(job, job->z + b * job->classes, job->out + b * job->nodes, below, levels);
    free(below);
}
