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

static void down_rows(Share *share) {
    const Job *job = share->job;
    double *above = malloc((size_t)(deepest(job->level, job->nodes) + 2) * sizeof *above);
    share->failed = !above;
    for (int64_t b = share->from; b < share->to && !share->failed; b++)
        sums_down(job, job->z + b * job->nodes, job->out + b * job->classes, above);
    free(above);
}

static void up_rows(Share *share) {
    const Job *job = share->job;
    const int64_t levels = deepest(job->level, job->nodes);
    double *below = malloc((size_t)(levels + 2) * sizeof *below);
    share->failed = !below;
    for (int64_t b = share->from; b < share->to && !share->failed; b++)
        sums_up(job, job->z + b * job->classes, job->out + b * job->nodes, below, levels);
    free(below);
}

/* ------------------------------------------------------------------------------------------ with a loss behind them */

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
    vdouble sum;       /* of what is below the node */
    vfloat high, low; /* what it hands down, in two parts: together they have more digits than a float */
} Open; /* an inner node; number 0 stands above the tops */

INLINE void hand_down(Open *open, const vdouble *above, const vdouble *zero) {
    vdouble wide;
    open->sum = *zero;
    narrow(above, &open->high);
    widen(&open->high, &wide);
    wide = *above - wide;
    narrow(&wide, &open->low);
}

/* Exponentials of blocks of leaves up to `end`, of the tile that begins at `start`, and their sums to the parents'. */
INLINE void leaf_terms(int size, const Place **block, int64_t start, int64_t end, const vfloat *tile, Open *open, vfloat *cell) {
    const vfloat most = (vfloat){0} + 88.0f;
    for (; (*block)->node < end; ++*block) {
        Open *up = open + (*block)->above;
        const vfloat *leaf = tile + (*block)->node - start;
        vfloat *out = cell + (*block)->node, z[4], sum;
        vdouble part;
        for (int j = 0; j < size; j++) {
            z[j] = (leaf[j] + up->high) + up->low;
            const vint much = z[j] > most;
            choose(&much, &most, &z[j], &z[j]);
        }
        exponentials(z, size);
        for (int j = 0; j < size; j++) out[j] = z[j];
        add_block(size, z, &sum);
        widen(&sum, &part);
        up->sum += part;
    }
}

/* Exponentials of the classes' logits less the label's at the leaves, their sums at inner nodes and in open[0], in one pass
   forward and one backward through the inner nodes. The label's own term is 1, so that no sum along its path can underflow;
   one that overflows shows in the sum of all. */
INLINE void terms_and_sums(const Job *job, const float *const *x, const vdouble *shift, const Places *at, Open *open, vfloat *cell) {
    const Place *inner = at->list[INNER], *four = at->list[FOURS], *two = at->list[TWOS], *one = at->list[ONES];
    const int64_t n = job->nodes;
    int64_t i = 0;
    vfloat tile[TILE];
    vdouble above = -*shift, part;
    const vdouble zero = *shift - *shift; /* a constant would be written in pieces, which the load after it would wait for */
    hand_down(open, &above, &zero);
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t end = start + TILE < n ? start + TILE : n;
        to_cells(x, start, end - start, tile);
        for (int r = 0; r < GROUP && end + TILE <= n; r++) /* the next tile comes while this one is worked on */
            for (int c = 0; c < TILE; c += 16) __builtin_prefetch(x[r] + end + c);
        for (; inner[i].node < end; i++) {
            const Open *up = open + inner[i].above;
            widen(&up->high, &above);
            widen(&up->low, &part);
            above += part;
            widen(&tile[inner[i].node - start], &part);
            above += job->sharing * part;
            hand_down(open + i + 1, &above, &zero);
        }
        leaf_terms(4, &four, start, end, tile, open, cell);
        leaf_terms(2, &two, start, end, tile, open, cell);
        leaf_terms(1, &one, start, end, tile, open, cell);
    }
    for (; i > 0; i--) {
        open[inner[i - 1].above].sum += open[i].sum;
        narrow(&open[i].sum, &cell[inner[i - 1].node]);
    }
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

/* The gradients of a group: cells of terms and sums times each row's factors. */
INLINE void write_rows(const Job *job, int64_t b, const int *quick, int count, const vfloat *cell, const Piece **piece) {
    const int64_t n = job->nodes;
    float *grad = job->grad + b * n;
    for (int64_t start = 0; start < n;) {
        vfloat factor = {0}, m[GROUP];
        int64_t same = n; /* up to which column all rows keep their factors */
        for (int r = 0; r < count; r++) {
            if (!quick[r]) continue;
            while (piece[r]->end <= start) piece[r]++;
            factor[r] = piece[r]->factor;
            same = piece[r]->end < same ? piece[r]->end : same;
        }
        for (; start + GROUP <= same; start += GROUP) {
            for (int c = 0; c < GROUP; c++) m[c] = cell[start + c] * factor;
            transpose(m);
            if (count == GROUP)
                for (int r = 0; r < GROUP; r++) store(grad + r * n + start, &m[r]);
            else
                for (int r = 0; r < count; r++) store(grad + r * n + start, &m[r]);
        }
        if (WORTH_A_VECTOR(same - start)) {
            for (int c = 0; c < GROUP; c++) m[c] = cell[start + (c < same - start ? c : 0)] * factor;
            transpose(m);
            for (int r = 0; r < count; r++) store_some(grad + r * n + start, same - start, &m[r]);
            start = same;
        }
        for (; start < same; start++) {
            const vfloat column = cell[start] * factor;
            for (int r = 0; r < count; r++) grad[r * n + start] = column[r];
        }
    }
}

typedef struct {
    Open *open;               /* (inner nodes + 1) */
    vfloat *cell;                 /* (nodes) */
    Places at;
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
    const Piece *piece[GROUP];
    int64_t length[GROUP];
    vdouble shift = {0};
    for (int r = 0; r < GROUP; r++) {
        x[r] = job->z + (b + (r < count ? r : 0)) * job->nodes;
        quick[r] = r < count && job->target[b + r] != job->ignore;
        if (quick[r]) shift[r] = label_sum(job, x[r], job->target[b + r]);
        quick[r] &= fabs(shift[r]) < 1e30;
    }
    terms_and_sums(job, x, &shift, &s->at, s->open, s->cell);
    const vdouble all = s->open[0].sum;
    for (int r = 0; r < count; r++) quick[r] &= all[r] < MOST;
    for (int r = 0; r < count; r++) {
        Step *path = s->path + r * (levels + 1);
        Piece *pieces = s->piece + r * (2 * levels + 3);
        piece[r] = pieces;
        if (!quick[r]) continue;
        length[r] = walk(job, job->target[b + r], path);
        for (int64_t j = 0; j < length[r]; j++) path[j].sum = s->cell[path[j].node][r];
        loss[r] = sum_factors(job, all[r], scale, path, length[r], pieces);
    }
    if (!job->grad) return;
    for (const Place *p = s->at.list[INNER]; job->sharing != 1 && p->node < job->nodes; p++)
        s->cell[p->node] *= (float)job->sharing;
    write_rows(job, b, quick, count, s->cell, piece);
    for (int r = 0; r < count; r++)
        for (int64_t j = 1; quick[r] && j < length[r]; j++) {
            const Step *step = s->path + r * (levels + 1) + j;
            job->grad[(b + r) * job->nodes + step->node] = (float)step->value;
        }
}

static void sum_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes, levels = deepest(job->level, n);
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    SumScratch s = {.cell = cells(n, sizeof(vfloat)), .path = cells(GROUP * (levels + 1), sizeof(Step)),
                    .piece = cells(GROUP * (2 * levels + 3), sizeof(Piece))};
    open_places(job->places, &s.at);
    s.open = cells(s.at.inner + 1, sizeof(Open));
    share->failed = !s.open || !s.cell || !s.path || !s.piece;
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
    free(s.open), free(s.cell), free(s.path), free(s.piece);
    free(s.row), free(s.terms), free(s.above), free(s.shifts), free(s.lse);
}
