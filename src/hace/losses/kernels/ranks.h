/* The best columns of each row, best first, equal ones in their order. One pass: a column counts only if it is above the worst of
   the best so far, which few are, so that most blocks cost one comparison per vector. */

#define MOST_BEST 64 /* beyond, a sort is faster */
#define STRIDE 32    /* columns compared at once */

typedef int64_t vpairs __attribute__((vector_size(LANES * 4)));

/* Whether some of x is above `bar`. */
INLINE int some_above(const float *x, float bar) {
    vint any = {0};
    for (int i = 0; i < STRIDE; i += LANES) {
        vfloat v;
        load(x + i, &v);
        any |= v > bar;
    }
    const vpairs pairs = (vpairs)any;
    return ((pairs[0] | pairs[1]) | (pairs[2] | pairs[3])) != 0;
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

EVERY_CPU static void rank_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->cols, k = job->best;
    for (int64_t b = share->from; b < share->to; b++) {
        const float *z = job->z + b * n;
        int64_t *column = job->answer + b * k, c = 0;
        float value[MOST_BEST];
        for (; c < k; c++) insert(value, column, c, k, z[c], c);
        for (; c + STRIDE <= n; c += STRIDE) {
            if (!some_above(z + c, value[k - 1])) continue;
            for (int64_t i = c; i < c + STRIDE; i++)
                if (z[i] > value[k - 1]) insert(value, column, k, k, z[i], i);
        }
        for (; c < n; c++)
            if (z[c] > value[k - 1]) insert(value, column, k, k, z[c], c);
    }
}
