/* Where a tree's inner nodes and leaves are, in lists that passes over it follow. */

#define INLINE static inline __attribute__((always_inline))

#define TILE 64 /* nodes that are worked on together */

INLINE int is_inner(const int32_t *level, int64_t v, int64_t n) { return v + 1 < n && level[v + 1] > level[v]; }

INLINE int64_t deepest(const int32_t *level, int64_t n) {
    int32_t most = 0;
    for (int64_t v = 0; v < n; v++) most = level[v] > most ? level[v] : most;
    return most;
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
static inline int list_places(const int32_t *level, int64_t n, Place *out) {
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
