/* Vectors of LANES floats, rows of floats, and LANES samples side by side. */

#define BLOCK 512         /* terms summed in float before they go into a double */
#define SAFE_RANGE 60.0f  /* logits within this range of their maximum: no subtree's sum can underflow in float */
#define NEAR 16.0f        /* a largest path sum that is small enough to stay */
#define NEAR_SUM 1e7      /* a sum in units of the label's term, up to which that term's logit is as good a shift as the largest */
#define WIDE 8            /* a branch with at least 1 of 8 columns is masked, not fetched column by column */

/* With masks, part of a vector is loaded and stored as fast as all of it: the last n floats of a range may be worth one. */
#if LANES == 16 && !defined(__clang__)
#include <immintrin.h>
#define MASKS
#define WORTH_A_VECTOR(n) ((n) >= LANES / 2)
#else
#define WORTH_A_VECTOR(n) 0
#endif

#if LANES == 4
#define NUMBERS 0, 1, 2, 3
#elif LANES == 8
#define NUMBERS 0, 1, 2, 3, 4, 5, 6, 7
#else
#define NUMBERS 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#endif

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef float vanywhere __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t vint __attribute__((vector_size(LANES * 4)));
typedef double vdouble __attribute__((vector_size(LANES * 8)));
typedef double vwide __attribute__((vector_size(LANES * 4))); /* half as many, which fit into one register */
typedef int64_t vlong __attribute__((vector_size(LANES * 4)));

/* ------------------------------------------------------------------------------------------ vectors */

/* Not memcpy, which compilers take apart into halves. */
INLINE void load(const float *p, vfloat *v) { *v = *(const vanywhere *)p; }
INLINE void store(float *p, const vfloat *v) { *(vanywhere *)p = *v; }

INLINE void choose(const vint *mask, const vfloat *yes, const vfloat *no, vfloat *out) {
    *out = (vfloat)((*mask & (vint)*yes) | (~*mask & (vint)*no));
}

/* exp(x) of up to four vectors, for x <= 88: 2^n times a polynomial in the rest, right to 3e-9 before rounding; below -87.7 it is
   0; NaN stays NaN. Each step waits for the one before it, so several vectors take it together. */
INLINE void exponentials(vfloat *x, int count) {
#define EACH for (int j = 0; j < count; j++)
    const vfloat floor_ = (vfloat){0} - 88.0f;
    vfloat t[4], n[4], r[4], p[4];
    EACH {
        const vint low = x[j] < floor_;
        choose(&low, &floor_, &x[j], &x[j]);
    }
    EACH t[j] = x[j] * 1.44269504088896341f + 12583039.0f; /* rounded to an integer, n + 127, in its lowest bits */
    EACH n[j] = t[j] - 12583039.0f;
    EACH r[j] = x[j] - n[j] * 0.693359375f;
    EACH r[j] = r[j] + n[j] * 2.12194440e-4f;
    EACH p[j] = r[j] * 1.381461e-3f + 8.368711e-3f;
    EACH p[j] = p[j] * r[j] + 4.166839e-2f;
    EACH p[j] = p[j] * r[j] + 1.6666521e-1f;
    EACH p[j] = p[j] * r[j] + 4.9999994e-1f;
    EACH p[j] = p[j] * r[j] + 1.0f;
    EACH {
        const vfloat power = (vfloat)((vint)t[j] << 23); /* n = -127 gives the bits of 0 */
        x[j] = p[j] * (r[j] * power) + power;
    }
#undef EACH
}

INLINE void exponential(vfloat *x) { exponentials(x, 1); }

/* log(x) for normal positive x (Cephes coefficients). */
INLINE void logarithm(vfloat *x) {
    vint bits = (vint)*x;
    vint exponent = (bits >> 23) - 127;
    vfloat m = (vfloat)((bits & 0x007fffff) | 0x3f800000);
    vint big = m > 1.41421356f;
    vfloat half = m * 0.5f;
    choose(&big, &half, &m, &m);
    vfloat e = __builtin_convertvector(exponent - big, vfloat); /* a true comparison is -1 */
    vfloat f = m - 1.0f;
    vfloat p = f * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    vfloat square = f * f;
    *x = f + (p * f * square - 2.12194440e-4f * e - 0.5f * square) + 0.693359375f * e;
}

INLINE void widen(const vfloat *x, vdouble *out) { *out = __builtin_convertvector(*x, vdouble); }
INLINE void narrow(const vdouble *x, vfloat *out) { *out = __builtin_convertvector(*x, vfloat); }

/* The sum of all lanes. Halves are named lane by lane: a vector of which memory is copied would stay there between terms. */
INLINE double total(const vfloat *v) {
    vdouble wide;
    widen(v, &wide);
#if LANES == 16
#define HALF(i) wide[i], wide[i + 1], wide[i + 2], wide[i + 3], wide[i + 4], wide[i + 5], wide[i + 6], wide[i + 7]
    const vwide eight = (vwide){HALF(0)} + (vwide){HALF(8)};
    return ((eight[0] + eight[4]) + (eight[2] + eight[6])) + ((eight[1] + eight[5]) + (eight[3] + eight[7]));
#undef HALF
#elif LANES == 8
    const vwide four = (vwide){wide[0], wide[1], wide[2], wide[3]} + (vwide){wide[4], wide[5], wide[6], wide[7]};
    return (four[0] + four[2]) + (four[1] + four[3]);
#else
    const vwide two = (vwide){wide[0], wide[1]} + (vwide){wide[2], wide[3]};
    return two[0] + two[1];
#endif
}

/* The largest and the least lane: halves are compared, so that few comparisons wait for each other. */
INLINE float top_lane(const vfloat *v) {
    float lane[LANES];
    memcpy(lane, v, sizeof lane);
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++) lane[j] = lane[j + half] > lane[j] ? lane[j + half] : lane[j];
    return lane[0];
}

INLINE float least_lane(const vfloat *v) {
    float lane[LANES];
    memcpy(lane, v, sizeof lane);
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++) lane[j] = lane[j + half] < lane[j] ? lane[j + half] : lane[j];
    return lane[0];
}

/* Whether a comparison holds in some lane. */
INLINE int some_set(const vint *mask) {
    const vlong pairs = (vlong)*mask;
    int64_t any = 0;
    for (int j = 0; j < LANES / 2; j++) any |= pairs[j];
    return any != 0;
}

/* ------------------------------------------------------------------------------------------ rows of floats */

INLINE float largest(const float *x, int64_t n) {
    float best = -INFINITY;
    int64_t i = 0;
    if (n >= LANES) {
        vfloat top, v;
        load(x, &top);
        for (i = LANES; i < n; i += LANES) {
            load(x + (i + LANES <= n ? i : n - LANES), &v); /* the last ones overlap */
            vint more = v > top;
            choose(&more, &v, &top, &top);
        }
        for (int j = 0; j < LANES; j++) best = top[j] > best ? top[j] : best;
    }
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    return best;
}

/* Whether x is within SAFE_RANGE of its largest, which goes to `top`. A NaN is not noticed. */
INLINE int close_together(const float *x, int64_t n, float *top) {
    float least = INFINITY, most = -INFINITY;
    int64_t i = 0;
    if (n >= LANES) {
        vfloat low, high, v;
        load(x, &low);
        high = low;
        for (i = LANES; i < n; i += LANES) {
            load(x + (i + LANES <= n ? i : n - LANES), &v); /* the last ones overlap */
            vint more = v > high, less = v < low;
            choose(&more, &v, &high, &high);
            choose(&less, &v, &low, &low);
        }
        most = top_lane(&high);
        least = least_lane(&low);
    }
    for (; i < n; i++) {
        most = x[i] > most ? x[i] : most;
        least = x[i] < least ? x[i] : least;
    }
    *top = most;
    return most - least <= SAFE_RANGE && fabsf(most) <= 3e38f;
}

/* The same, but for logits of -inf, as inner nodes have them in a head over leaves. */
INLINE int close_or_impossible(const float *x, int64_t n, float *top) {
    float least = INFINITY, most = -INFINITY;
    vfloat low[4], high[4], v;
    int64_t i = 0;
    for (int j = 0; j < 4; j++) low[j] = (vfloat){0} + INFINITY, high[j] = (vfloat){0} - INFINITY;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) { /* each comparison waits for the one before it */
            load(x + i + j * LANES, &v);
            const vint less = (v < low[j]) & (v > -INFINITY), more = v > high[j];
            choose(&less, &v, &low[j], &low[j]);
            choose(&more, &v, &high[j], &high[j]);
        }
    for (int j = 0; j < 4 * LANES; j++) {
        least = low[j / LANES][j % LANES] < least ? low[j / LANES][j % LANES] : least;
        most = high[j / LANES][j % LANES] > most ? high[j / LANES][j % LANES] : most;
    }
    for (; i < n; i++) {
        least = x[i] < least && x[i] > -INFINITY ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    *top = most;
    return most - least <= SAFE_RANGE && fabsf(most) <= 3e38f;
}

INLINE int has_nan(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (x[i] != x[i]) return 1;
    return 0;
}

/* The first n floats of a vector, the others filled up with `rest`. */
INLINE void load_some(const float *p, int64_t n, float rest, vfloat *v) {
#ifdef MASKS
    *v = (vfloat)_mm512_mask_loadu_ps(_mm512_set1_ps(rest), (__mmask16)((1u << n) - 1), p);
#else
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = i < n ? p[i] : rest;
    memcpy(v, lanes, sizeof lanes);
#endif
}

INLINE void store_some(float *p, int64_t n, const vfloat *v) {
#ifdef MASKS
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)*v);
#else
    memcpy(p, v, (size_t)n * sizeof(float));
#endif
}

/* x - shift -> its exponential. A difference above 88 counts as 88 if `capped`; otherwise there must be none. */
INLINE void exp_less(vfloat *x, float shift, int capped) {
    const vfloat most = (vfloat){0} + 88.0f;
    *x = *x - shift;
    const vint much = *x > most;
    if (capped) choose(&much, &most, x, x);
    exponential(x);
}

INLINE double sum_terms(const float *x, int64_t n, float shift, int capped, float *out) {
    double sum = 0;
    vfloat v;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t end = start + BLOCK < n ? start + BLOCK : n, i = start;
        vfloat partial = {0};
        for (; i + LANES <= end; i += LANES) {
            load(x + i, &v);
            exp_less(&v, shift, capped);
            partial = partial + v;
            if (out) store(out + i, &v);
        }
        if (i < end && end >= LANES) { /* the last ones overlap those before them, which count once */
            const vint lane = {NUMBERS};
            load(x + end - LANES, &v);
            exp_less(&v, shift, capped);
            if (out) store(out + end - LANES, &v);
            v = (vfloat)((vint)v & (lane >= (int32_t)(LANES - (end - i))));
            partial = partial + v;
        } else if (i < end) {
            load_some(x + i, end - i, -INFINITY, &v);
            exp_less(&v, shift, capped);
            partial = partial + v;
            if (out) store_some(out + i, end - i, &v);
        }
        sum += total(&partial);
    }
    return sum;
}

/* Sum of exp(x - shift); with out, the terms are stored there. */
INLINE double sum_exp(const float *x, int64_t n, float shift, float *out) { return sum_terms(x, n, shift, 0, out); }

INLINE double total_of(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t end = start + BLOCK < n ? start + BLOCK : n, i = start;
        vfloat partial = {0}, v;
        for (; i + LANES <= end; i += LANES) {
            load(x + i, &v);
            partial = partial + v;
        }
        if (WORTH_A_VECTOR(end - i)) {
            load_some(x + i, end - i, 0, &v);
            partial = partial + v;
            i = end;
        }
        for (; i < end; i++) sum += x[i];
        if (end - start >= LANES / 2) sum += total(&partial);
    }
    return sum;
}

INLINE void scale_by(float *x, int64_t n, double factor) {
    float f = (float)factor;
    int64_t i = 0;
    vfloat v;
    for (; i + LANES <= n; i += LANES) {
        load(x + i, &v);
        v = v * f;
        store(x + i, &v);
    }
    if (WORTH_A_VECTOR(n - i)) {
        load_some(x + i, n - i, 0, &v);
        v = v * f;
        store_some(x + i, n - i, &v);
        return;
    }
    for (; i < n; i++) x[i] *= f;
}

/* ------------------------------------------------------------------------------------------ samples side by side */

/* Passes over a tree are chains of small steps that wait for each other, so GROUP samples take each step together: a node's
   values are one vector, its *cell*. Rows of logits become cells by square tiles of numbers, transposed in registers.

   Nodes are in preorder: going forward, a node finds what its ancestors hand down; going backward, its subtree is complete when
   its turn comes. Most nodes are leaves, which only add to their parent or take from it, so passes go tile by tile through
   lists of inner nodes and of leaves. */

#define GROUP LANES

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vint){__VA_ARGS__})
#endif

/* GROUP rows become columns. */
#if LANES == 8
INLINE void transpose(vfloat *m) {
    vfloat t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = SHUFFLE(m[2 * i], m[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[2 * i + 1] = SHUFFLE(m[2 * i], m[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int h = 0; h < 8; h += 4)
        for (int i = 0; i < 2; i++) {
            u[h + 2 * i] = SHUFFLE(t[h + i], t[h + 2 + i], 0, 1, 8, 9, 4, 5, 12, 13);
            u[h + 2 * i + 1] = SHUFFLE(t[h + i], t[h + 2 + i], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        m[i] = SHUFFLE(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        m[i + 4] = SHUFFLE(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
#else
#if LANES == 4
#define LOW_HALVES(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define HIGH_HALVES(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#else
#define LOW_HALVES(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_HALVES(a, b) SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#endif
/* Each step interleaves the first half of all rows with the second: after as many as GROUP has digits, rows are columns. */
INLINE void transpose(vfloat *m) {
    vfloat t[GROUP];
    for (int digit = GROUP; digit > 1; digit /= 2) {
        for (int i = 0; i < GROUP / 2; i++) {
            t[2 * i] = LOW_HALVES(m[i], m[i + GROUP / 2]);
            t[2 * i + 1] = HIGH_HALVES(m[i], m[i + GROUP / 2]);
        }
        for (int i = 0; i < GROUP; i++) m[i] = t[i];
    }
}
#endif

/* Columns start .. start + width of a group's rows -> cells. */
INLINE void to_cells(const float *const *row, int64_t start, int64_t width, vfloat *cell) {
    int64_t c = 0;
    for (; c + GROUP <= width; c += GROUP) {
        vfloat m[GROUP];
        for (int r = 0; r < GROUP; r++) load(row[r] + start + c, &m[r]);
        transpose(m);
        for (int r = 0; r < GROUP; r++) cell[c + r] = m[r];
    }
    if (WORTH_A_VECTOR(width - c)) {
        vfloat m[GROUP];
        for (int r = 0; r < GROUP; r++) load_some(row[r] + start + c, width - c, 0, &m[r]);
        transpose(m);
        for (int r = 0; r < width - c; r++) cell[c + r] = m[r];
        return;
    }
    for (; c < width; c++)
        for (int r = 0; r < GROUP; r++) ((float *)&cell[c])[r] = row[r][start + c];
}

/* Cells -> a tile of a group's rows. */
INLINE void to_rows(const vfloat *cell, int64_t width, float (*row)[TILE]) {
    int64_t c = 0;
    for (; c + GROUP <= width; c += GROUP) {
        vfloat m[GROUP];
        for (int r = 0; r < GROUP; r++) m[r] = cell[c + r];
        transpose(m);
        for (int r = 0; r < GROUP; r++) store(row[r] + c, &m[r]);
    }
    if (WORTH_A_VECTOR(width - c)) {
        vfloat m[GROUP];
        for (int r = 0; r < GROUP; r++) m[r] = cell[c + (r < width - c ? r : 0)];
        transpose(m);
        for (int r = 0; r < GROUP; r++) store_some(row[r] + c, width - c, &m[r]);
        return;
    }
    for (; c < width; c++)
        for (int r = 0; r < GROUP; r++) row[r][c] = ((const float *)&cell[c])[r];
}

/* exp(x - shift) of a tile of a group's rows -> cells. Rows of `out` that are not NULL get a copy. With `weight`, a tile for each
   row, the sum of weight * (x - shift) is added to `dot`. */
INLINE void exp_cells(const float *const *row, int64_t start, int64_t width, const float *shift, float *const *out,
                      const float *const *weight, vdouble *dot, vfloat *cell) {
    float term[GROUP][TILE];
    const float *from[GROUP];
    for (int r = 0; r < GROUP; r++) {
        from[r] = r > 0 && row[r] == row[0] ? from[0] : out[r] ? out[r] + start : term[r];
        if (r > 0 && row[r] == row[0]) continue; /* a group that is not full repeats its first sample */
        float *to = (float *)from[r];
        int64_t i = 0;
        vfloat v, by, sum = {0};
        for (; i + LANES <= width; i += LANES) {
            load(row[r] + start + i, &v);
            v = v - shift[r];
            if (weight) load(weight[r] + i, &by), sum += by * v;
            exponential(&v);
            store(to + i, &v);
        }
        if (i < width) {
            load_some(row[r] + start + i, width - i, 0, &v);
            v = v - shift[r];
            if (weight) load_some(weight[r] + i, width - i, 0, &by), sum += by * v;
            exponential(&v);
            store_some(to + i, width - i, &v);
        }
        if (weight) (*dot)[r] += total(&sum);
    }
    to_cells(from, 0, width, cell);
}

/* The sum of four cells, two or one. */
INLINE void add_block(int size, const vfloat *cell, vfloat *sum) {
    *sum = size == 4 ? (cell[0] + cell[1]) + (cell[2] + cell[3]) : size == 2 ? cell[0] + cell[1] : cell[0];
}

INLINE void *cells(int64_t count, size_t size) {
    void *p;
    return posix_memalign(&p, 128, (size_t)(count + 1) * size) ? NULL : p;
}

/* What a sample's loss is multiplied by, where the label's weight is not in its table. */
INLINE double scale_of(const Job *job, int64_t y) {
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    return job->weight && y != job->ignore ? scale * job->weight[y] : scale;
}

INLINE double minus(double a, double b) { return a == b ? 0.0 : a - b; } /* -inf less -inf is 0 here */
