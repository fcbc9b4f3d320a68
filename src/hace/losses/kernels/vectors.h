#define LANES 8           /* floats in a vector: wider ones compile to code without vectors on CPUs that lack them */
#define BLOCK 512         /* terms summed in float before they go into a double */
#define SAFE_RANGE 60.0f  /* logits within this range of their maximum: no subtree's sum can underflow in float */
#define NEAR 16.0f        /* a largest path sum that is small enough to stay */
#define NEAR_SUM 1e7      /* a sum in units of the label's term, up to which that term's logit is as good a shift as the largest */
#define WIDE 8            /* a branch with at least 1 of 8 columns is masked, not fetched column by column */
#define MIN_WORK 262144    /* logits a thread must have to be worth starting */
#define MAX_THREADS 256

#if !defined(__x86_64__) || !defined(__linux__) || defined(__SANITIZE_ADDRESS__)
#define EVERY_CPU
#elif !defined(__clang__)
#define EVERY_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif __clang_major__ >= 14 /* which takes an "arch" for one model of CPU */
#define EVERY_CPU __attribute__((target_clones("avx2", "default")))
#else
#define EVERY_CPU
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef float vanywhere __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t vint __attribute__((vector_size(LANES * 4)));
typedef float vhalf __attribute__((vector_size(LANES * 2)));
typedef double vwide __attribute__((vector_size(LANES * 4)));

/* ------------------------------------------------------------------------------------------ vectors of 8 floats */

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

INLINE double total(const vfloat *v) {
    vhalf low, high;
    memcpy(&low, v, sizeof low);
    memcpy(&high, (const float *)v + LANES / 2, sizeof high);
    const vwide s = __builtin_convertvector(low, vwide) + __builtin_convertvector(high, vwide);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

INLINE float largest(const float *x, int64_t n) {
    float best = -INFINITY;
    int64_t i = 0;
    if (n >= LANES) {
        vfloat top, v;
        load(x, &top);
        for (i = LANES; i + LANES <= n; i += LANES) {
            load(x + i, &v);
            vint more = v > top;
            choose(&more, &v, &top, &top);
        }
        for (int j = 0; j < LANES; j++)
            if (((float *)&top)[j] > best) best = ((float *)&top)[j];
    }
    for (; i < n; i++)
        if (x[i] > best) best = x[i];
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
        for (int j = 0; j < LANES; j++) {
            most = high[j] > most ? high[j] : most;
            least = low[j] < least ? low[j] : least;
        }
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

/* The last, partial vector of a range, filled up with `rest`. */
INLINE void load_tail(const float *p, int64_t n, float rest, vfloat *v) {
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = i < n ? p[i] : rest;
    memcpy(v, lanes, sizeof lanes);
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
            const vint lane = {0, 1, 2, 3, 4, 5, 6, 7};
            load(x + end - LANES, &v);
            exp_less(&v, shift, capped);
            if (out) store(out + end - LANES, &v);
            v = (vfloat)((vint)v & (lane >= (int32_t)(LANES - (end - i))));
            partial = partial + v;
        } else if (i < end) {
            load_tail(x + i, end - i, -INFINITY, &v);
            exp_less(&v, shift, capped);
            partial = partial + v;
            if (out) memcpy(out + i, &v, (size_t)(end - i) * sizeof(float));
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
        for (; i < end; i++) sum += x[i];
        if (end - start >= LANES) sum += total(&partial);
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
    for (; i < n; i++) x[i] *= f;
}

/* ------------------------------------------------------------------------------------------ eight samples side by side */

/* Eight samples side by side.

   Passes over a tree are chains of small steps that wait for each other, so eight samples take each step together: a node's
   eight values are one vector, its *cell*. Rows of logits become cells by tiles of 8 x 8 numbers, transposed in registers.

   Nodes are in preorder: going forward, a node finds what its ancestors hand down; going backward, its subtree is complete when
   its turn comes. Most nodes are leaves, which only add to their parent or take from it, so passes go tile by tile through
   lists of inner nodes and of leaves. */

#define GROUP 8
#define TILE 64

typedef float v8 __attribute__((vector_size(GROUP * 4)));
typedef double d8 __attribute__((vector_size(GROUP * 8)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t i8 __attribute__((vector_size(GROUP * 4)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

INLINE void widen(const v8 *x, d8 *out) { *out = __builtin_convertvector(*x, d8); }
INLINE void narrow(const d8 *x, v8 *out) { *out = __builtin_convertvector(*x, v8); }

INLINE void transpose(v8 *m) {
    v8 t[8], u[8];
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

/* Columns start .. start + width of eight rows -> cells. */
INLINE void to_cells(const float *const *row, int64_t start, int64_t width, v8 *cell) {
    int64_t c = 0;
    for (; c + 8 <= width; c += 8) {
        v8 m[8];
        for (int r = 0; r < GROUP; r++) load(row[r] + start + c, &m[r]);
        transpose(m);
        for (int r = 0; r < GROUP; r++) cell[c + r] = m[r];
    }
    for (; c < width; c++)
        for (int r = 0; r < GROUP; r++) ((float *)&cell[c])[r] = row[r][start + c];
}

/* Cells -> a tile of eight rows. */
INLINE void to_rows(const v8 *cell, int64_t width, float (*row)[TILE]) {
    int64_t c = 0;
    for (; c + 8 <= width; c += 8) {
        v8 m[8];
        for (int r = 0; r < GROUP; r++) m[r] = cell[c + r];
        transpose(m);
        for (int r = 0; r < GROUP; r++) store(row[r] + c, &m[r]);
    }
    for (; c < width; c++)
        for (int r = 0; r < GROUP; r++) row[r][c] = ((const float *)&cell[c])[r];
}

/* exp(x - shift) of a tile of eight rows -> cells. Rows of `out` that are not NULL get a copy. With `weight`, a tile for each
   row, the sum of weight * (x - shift) is added to `dot`. */
INLINE void exp_cells(const float *const *row, int64_t start, int64_t width, const float *shift, float *const *out,
                      const float *const *weight, d8 *dot, v8 *cell) {
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
            load_tail(row[r] + start + i, width - i, 0, &v);
            v = v - shift[r];
            if (weight) load_tail(weight[r] + i, width - i, 0, &by), sum += by * v;
            exponential(&v);
            memcpy(to + i, &v, (size_t)(width - i) * sizeof(float));
        }
        if (weight) (*dot)[r] += total(&sum);
    }
    to_cells(from, 0, width, cell);
}

/* The sum of four cells, two or one. */
INLINE void add_block(int size, const v8 *cell, v8 *sum) {
    *sum = size == 4 ? (cell[0] + cell[1]) + (cell[2] + cell[3]) : size == 2 ? cell[0] + cell[1] : cell[0];
}

INLINE int is_inner(const int32_t *level, int64_t v, int64_t n) { return v + 1 < n && level[v + 1] > level[v]; }

INLINE int64_t deepest(const int32_t *level, int64_t n) {
    int32_t most = 0;
    for (int64_t v = 0; v < n; v++) most = level[v] > most ? level[v] : most;
    return most;
}

INLINE void *cells(int64_t count, size_t size) {
    void *p;
    return posix_memalign(&p, 64, (size_t)(count + 1) * size) ? NULL : p;
}

typedef struct {
    int32_t node, above; /* where it is; its parent's number among the inner nodes, which begin at 1 */
} Place; /* of an inner node, or of leaves side by side */

/* The places of a tree, each list in preorder and ended by a place at n: passes go through them without a branch that depends
   on the tree. Leaves side by side, of the same parent and in the same tile, are in blocks of four, two and one. */
enum { INNER, FOURS, TWOS, ONES, LISTS };

typedef struct {
    const Place *list[LISTS];
    int64_t inner; /* how many inner nodes */
} Places;

#define PLACES(n) ((n) + LISTS + 2) /* room for all lists, behind two places that say where they begin */

/* Fills the lists. Returns 0 when memory ran out. */
static int list_places(const int32_t *level, int64_t n, Place *out) {
    int32_t *last = calloc((size_t)(deepest(level, n) + 2), sizeof *last); /* inner node opened last, by level; 0 for none */
    if (!last) return 0;
    int32_t at[LISTS] = {0}, begin[LISTS] = {2};
    for (int fill = 0; fill < 2; fill++) { /* first they are counted */
        int32_t number = 0;
        for (int32_t v = 0; v < n;) {
            const int32_t above = last[level[v]];
            if (is_inner(level, v, n)) {
                last[level[v] + 1] = ++number;
                if (fill) out[at[INNER]] = (Place){v, above};
                at[INNER]++, v++;
                continue;
            }
            int32_t end = v + 1;
            while (end < n && end % TILE && level[end] == level[v] && !is_inner(level, end, n)) end++;
            for (int k = FOURS; k <= ONES; k++)
                for (const int32_t size = 8 >> k; end - v >= size; v += size, at[k]++)
                    if (fill) out[at[k]] = (Place){v, above};
        }
        for (int k = INNER; k < LISTS && fill; k++) out[at[k]] = (Place){(int32_t)n, 0};
        for (int k = FOURS; k < LISTS && !fill; k++) begin[k] = begin[k - 1] + at[k - 1] + 1;
        memcpy(at, begin, sizeof at);
    }
    out[0] = (Place){begin[FOURS], begin[TWOS]};
    out[1] = (Place){begin[ONES], begin[FOURS] - begin[INNER] - 1};
    free(last);
    return 1;
}

INLINE void open_places(const Place *p, Places *to) {
    *to = (Places){{p + 2, p + p[0].node, p + p[0].above, p + p[1].node}, p[1].above};
}
