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
