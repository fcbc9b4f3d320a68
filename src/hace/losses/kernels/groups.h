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
    int32_t *last = malloc((size_t)(deepest(level, n) + 2) * sizeof *last); /* inner node opened last, by level */
    if (!last) return 0;
    int32_t at[LISTS] = {0}, begin[LISTS] = {2};
    for (int fill = 0; fill < 2; fill++) { /* first they are counted */
        int32_t number = 0;
        last[0] = 0;
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
