/* Path sums: the outputs of all nodes become the classes' logits, a leaf's own output plus `sharing` times those of all its
   ancestors, and a loss of the label's path is taken over the classes.

   With E the exponentials of the classes' logits and S_v their sum below node v, a gradient of the outputs needs no pass of
   its own. A node v off the label's path, whose innermost ancestor on it is b_r, has

       (v a leaf ? E_v : sharing * S_v) * (mass / S_all - sum_{j >= r} T_j / S_j),

   one factor for each segment of the row, and a node b_j on the path, j >= 1, has

       sharing * (mass S_j / S_all - sum_{i <= j} T_i - S_j sum_{i > j} T_i / S_i). */

#define MOST 1e18 /* a sum in units of the label's own term that needs no other shift */

typedef struct {
    int64_t node;
    double value, sum;
} Step; /* of a label's path */

/* The path of a label: all its nodes, with the table's values where the table has them. Returns its length. */
INLINE int64_t walk(const Job *job, int64_t y, Step *path) {
    int64_t e = job->start[y], k = 0;
    for (int64_t v = job->node[e]; v < job->nodes; v = job->parent[v]) {
        const int listed = e < job->start[y + 1] && job->node[e] == v;
        path[k++] = (Step){v, listed ? job->value[e] : 0, 0};
        e += listed;
    }
    return k;
}

/* The logit of the first class below a label, in double precision. */
INLINE double label_sum(const Job *job, const float *z, int64_t y) {
    int64_t v = job->node[job->start[y]];
    while (is_inner(job->level, v, job->nodes)) v++;
    double sum = z[v];
    for (v = job->parent[v]; v < job->nodes; v = job->parent[v]) sum += job->sharing == 0 ? 0 : job->sharing * z[v];
    return sum;
}

typedef struct {
    d8 above, below; /* what ancestors hand down; the sum of what is below the open node */
    int64_t node;    /* the open node */
} Level; /* of the walk through the tree, one for each level and one for all */

/* Closes open nodes down to a depth: their subtrees are complete, so their sums are final. */
INLINE void close_to(Level *level, int64_t depth, int64_t to, v8 *cell) {
    for (; depth > to; depth--) {
        narrow(&level[depth].below, &cell[level[depth - 1].node]);
        level[depth - 1].below += level[depth].below;
    }
}

/* Adds leaves side by side, summed in float, to the node that is open at a depth. */
INLINE void add_run(Level *level, int64_t depth, v8 *run) {
    d8 wide;
    widen(run, &wide);
    level[depth].below += wide;
    *run = (v8){0};
}

/* One pass forward: exponentials of the classes' logits less the label's at the leaves, their sums at inner nodes, that of
   all in level[0].below. The label's own term is 1, so that no sum along its path can underflow; one that overflows shows in
   the sum of all. */
INLINE void terms_and_sums(const Job *job, const float *const *x, const d8 *shift, Level *level, v8 *cell) {
    const int64_t n = job->nodes;
    const vfloat most = (vfloat){0} + 88.0f;
    int64_t depth = 0; /* how many nodes are open: the level of the leaves in `run` */
    v8 run = {0};
    level[0].above = (d8){0} - *shift;
    level[0].below = (d8){0};
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        v8 *tile = cell + start;
        to_cells(x, start, width, tile);
        for (int64_t c = 0; c < width; c++) {
            Level *here = level + job->level[start + c];
            d8 z, sum;
            widen(&tile[c], &z);
            sum = z + here->above;
            here[1].above = here->above + job->sharing * z;
            narrow(&sum, &tile[c]);
        }
        float *lane = (float *)tile;
        vfloat v;
        int64_t i = 0;
        for (; i + LANES <= width * GROUP; i += LANES) {
            load(lane + i, &v);
            const vint much = v > most;
            choose(&much, &most, &v, &v);
            exponential(&v);
            store(lane + i, &v);
        }
        if (i < width * GROUP) {
            load_tail(lane + i, GROUP, 0, &v);
            const vint much = v > most;
            choose(&much, &most, &v, &v);
            exponential(&v);
            memcpy(lane + i, &v, GROUP * sizeof(float));
        }
        for (int64_t c = 0; c < width; c++) {
            const int32_t l = job->level[start + c];
            const int inner = is_inner(job->level, start + c, n);
            if (!inner && l == depth) { /* one addition each */
                run += tile[c];
                continue;
            }
            add_run(level, depth, &run);
            close_to(level, depth, l, cell);
            depth = l;
            if (inner) {
                level[l].node = start + c;
                level[++depth].below = (d8){0};
            } else {
                run = tile[c];
            }
        }
        add_run(level, depth, &run); /* before floats lose digits */
    }
    close_to(level, depth, 0, cell);
}

typedef struct {
    int64_t end;
    float factor;
} Piece; /* a segment of a row, up to `end` */

/* Loss of one sample, its segments' factors, and the gradient at the path's inner nodes, left in path[].value. */
INLINE double sum_factors(const Job *job, double all, double scale, Step *path, int64_t k, Piece *piece) {
    double loss = 0, mass = 0, above = 0;
    for (int64_t j = 0; j < k; j++) {
        mass += path[j].value;
        if (path[j].value != 0) loss -= path[j].value * log(path[j].sum / all);
    }
    if (!job->grad) return loss;
    const int64_t n = job->nodes;
    piece[0] = (Piece){path[k - 1].node, (float)(scale * mass / all)};
    piece[2 * k] = (Piece){n, (float)(scale * mass / all)};
    double inside = mass; /* sum of T_i for i <= j */
    for (int64_t j = k - 1; j >= 0; j--) {
        const double value = path[j].value, outer = above;
        above += value / path[j].sum;
        const float factor = (float)(scale * (mass / all - above));
        piece[k - j] = (Piece){j ? path[j - 1].node : job->ends[path[0].node], factor};
        if (j) piece[k + j] = (Piece){job->ends[path[j].node], factor};
        path[j].value = scale * job->sharing * (path[j].sum * (mass / all - outer) - inside);
        inside -= value;
    }
    return loss;
}

/* The gradients of a group: cells of sums times each row's factors. */
INLINE void write_rows(const Job *job, int64_t b, const int *quick, int count, v8 *cell, Piece *const *piece) {
    const int64_t n = job->nodes;
    const float weight[2] = {1, (float)job->sharing};
    float row[GROUP][TILE];
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t width = start + TILE < n ? TILE : n - start;
        for (int64_t c = 0; job->sharing != 1 && c < width; c++)
            cell[start + c] *= weight[is_inner(job->level, start + c, n)];
        to_rows(cell + start, width, row);
        for (int r = 0; r < count; r++) {
            if (!quick[r]) continue;
            float *grad = job->grad + (b + r) * n + start;
            for (int64_t at = 0; at < width;) {
                Piece *p = piece[r];
                while (p->end <= start + at) p++;
                ((Piece **)piece)[r] = p;
                const int64_t to = p->end - start < width ? p->end - start : width;
                if (to - at == TILE) {
                    vfloat v;
                    for (int i = 0; i < TILE; i += LANES) {
                        load(row[r] + i, &v);
                        v = v * p->factor;
                        store(grad + i, &v);
                    }
                } else {
                    for (int64_t i = at; i < to; i++) grad[i] = row[r][i] * p->factor;
                }
                at = to;
            }
        }
    }
}

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

typedef struct {
    Level *level;             /* (levels + 2) */
    v8 *cell;                 /* (nodes) */
    Step *path;               /* (GROUP, levels + 1) */
    Piece *piece;             /* (GROUP, 2 levels + 3) */
    float *row, *terms;       /* (classes) the careful way, made when first needed, as are the next */
    double *above;            /* (levels + 2) */
    float *shifts;            /* (2 levels + 4) */
    Lse *lse;                 /* (levels + 2) */
} SumScratch;

INLINE int careful_sum_scratch(const Job *job, int64_t levels, SumScratch *s) {
    if (!s->row) s->row = malloc((size_t)job->classes * sizeof(float));
    if (!s->terms) s->terms = malloc((size_t)job->classes * sizeof(float));
    if (!s->above) s->above = malloc((size_t)(levels + 2) * sizeof(double));
    if (!s->shifts) s->shifts = malloc((size_t)(2 * levels + 4) * sizeof(float));
    if (!s->lse) s->lse = malloc((size_t)(levels + 2) * sizeof(Lse));
    return s->row && s->terms && s->above && s->shifts && s->lse;
}

INLINE double careful_sum_row(const Job *job, const float *z, int64_t y, double scale, float *grad, int64_t levels,
                              SumScratch *s) {
    sums_down(job, z, s->row, s->above);
    const double loss = path_row(job, s->row, y, scale, grad ? s->terms : NULL, s->lse, s->shifts, NULL, NULL);
    if (grad) sums_up(job, s->terms, grad, s->above, levels);
    return loss;
}

/* The quick samples of a group; `quick` says which they were. */
INLINE void sum_group(const Job *job, int64_t b, int count, double scale, int64_t levels, SumScratch *s, int *quick,
                      double *loss) {
    const float *x[GROUP];
    Piece *piece[GROUP];
    int64_t length[GROUP];
    d8 shift = {0};
    for (int r = 0; r < GROUP; r++) {
        x[r] = job->z + (b + (r < count ? r : 0)) * job->nodes;
        quick[r] = r < count && job->target[b + r] != job->ignore;
        if (quick[r]) shift[r] = label_sum(job, x[r], job->target[b + r]);
        quick[r] &= fabs(shift[r]) < 1e30;
    }
    terms_and_sums(job, x, &shift, s->level, s->cell);
    const d8 all = s->level[0].below;
    for (int r = 0; r < count; r++) quick[r] &= all[r] < MOST;
    for (int r = 0; r < count; r++) {
        Step *path = s->path + r * (levels + 1);
        piece[r] = s->piece + r * (2 * levels + 3);
        if (!quick[r]) continue;
        length[r] = walk(job, job->target[b + r], path);
        for (int64_t j = 0; j < length[r]; j++) path[j].sum = s->cell[path[j].node][r];
        loss[r] = sum_factors(job, all[r], scale, path, length[r], piece[r]);
    }
    if (!job->grad) return;
    write_rows(job, b, quick, count, s->cell, piece);
    for (int r = 0; r < count; r++)
        for (int64_t j = 1; quick[r] && j < length[r]; j++) {
            const Step *step = s->path + r * (levels + 1) + j;
            job->grad[(b + r) * job->nodes + step->node] = (float)step->value;
        }
}

EVERY_CPU static void sum_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes, levels = deepest(job->level, n);
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    SumScratch s = {.level = cells(levels + 2, sizeof(Level)), .cell = cells(n, sizeof(v8)),
                    .path = cells(GROUP * (levels + 1), sizeof(Step)),
                    .piece = cells(GROUP * (2 * levels + 3), sizeof(Piece))};
    share->failed = !s.level || !s.cell || !s.path || !s.piece;
    for (int64_t b = share->from; b < share->to && !share->failed; b += GROUP) {
        const int count = share->to - b < GROUP ? (int)(share->to - b) : GROUP;
        int quick[GROUP];
        double loss[GROUP];
        sum_group(job, b, count, scale, levels, &s, quick, loss);
        for (int r = 0; r < count && !share->failed; r++) {
            float *grad = job->grad ? job->grad + (b + r) * n : NULL;
            const int64_t y = job->target[b + r];
            if (y == job->ignore) {
                loss[r] = 0;
                if (grad) memset(grad, 0, (size_t)n * sizeof(float));
            } else if (!quick[r]) {
                share->failed = !careful_sum_scratch(job, levels, &s);
                if (!share->failed) loss[r] = careful_sum_row(job, job->z + (b + r) * n, y, scale, grad, levels, &s);
            }
            job->loss[b + r] = (float)(scale * loss[r]); /* nan where the mean has nothing to divide by */
        }
    }
    free(s.level), free(s.cell), free(s.path), free(s.piece);
    free(s.row), free(s.terms), free(s.above), free(s.shifts), free(s.lse);
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
