/* Eight samples side by side.

   Passes over a tree are chains of small steps that wait for each other, so eight samples take each step together: a node's
   eight values are one vector, its *cell*. Rows of logits become cells by tiles of 8 x 8 numbers, transposed in registers.

   Nodes are in preorder, so a pass needs no list of children: going backward, the children of a node come right after it,
   and one running sum for each level holds the sums of the subtrees that are complete. Going forward, one value for each
   level holds what the ancestors of the current node hand down. Both stacks stay in the fastest cache. */

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

/* exp(x - shift) of a tile of eight rows -> cells. Rows of `out` that are not NULL get a copy. */
INLINE void exp_cells(const float *const *row, int64_t start, int64_t width, const float *shift, float *const *out, v8 *cell) {
    float term[GROUP][TILE];
    const float *from[GROUP];
    for (int r = 0; r < GROUP; r++) {
        from[r] = r > 0 && row[r] == row[0] ? from[0] : out[r] ? out[r] + start : term[r];
        if (r > 0 && row[r] == row[0]) continue; /* a group that is not full repeats its first sample */
        float *to = (float *)from[r];
        int64_t i = 0;
        vfloat v;
        for (; i + LANES <= width; i += LANES) {
            load(row[r] + start + i, &v);
            v = v - shift[r];
            exponential(&v);
            store(to + i, &v);
        }
        if (i < width) {
            load_tail(row[r] + start + i, width - i, 0, &v);
            v = v - shift[r];
            exponential(&v);
            memcpy(to + i, &v, (size_t)(width - i) * sizeof(float));
        }
    }
    to_cells(from, 0, width, cell);
}

INLINE int is_inner(const int32_t *level, int64_t v, int64_t n) { return v + 1 < n && level[v + 1] > level[v]; }

/* One step of a backward pass: a node's own value in, its subtree's sum out. */
INLINE void close_subtree(d8 *stack, int32_t level, const v8 *own, d8 *sum) {
    d8 wide;
    widen(own, &wide);
    *sum = wide + stack[level + 1];
    stack[level + 1] = (d8){0};
    stack[level] += *sum;
}

INLINE int64_t deepest(const int32_t *level, int64_t n) {
    int32_t most = 0;
    for (int64_t v = 0; v < n; v++) most = level[v] > most ? level[v] : most;
    return most;
}

INLINE void *cells(int64_t count, size_t size) {
    void *p;
    return posix_memalign(&p, 64, (size_t)(count + 1) * size) ? NULL : p;
}
