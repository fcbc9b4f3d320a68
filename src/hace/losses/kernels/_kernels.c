/* The compiled accelerator of hace: losses and aggregation over trees, float32, on the CPU.

   It computes what hace/losses/numerics.py computes and is held by the same tests. Plain C, no torch headers: Python passes
   the addresses of contiguous buffers and keeps them alive. The interpreter lock is released while it works.

   Two ideas carry it.
   1. In preorder a subtree is a range. The ranges of a label's path are nested, so a row of logits splits into at most
      2K + 1 segments, and one pass from the innermost outward gives the log-sum-exp L_j of every ancestor. Each segment
      is shifted by its own maximum and sums only grow: nothing cancels, underflows or overflows, whatever the logits.
   2. Where all nodes matter, one pass over the parents upward gives every subtree's sum, one downward the gradient.

   Scalars are double, rows are float; a sum of many floats is folded into a double every BLOCK terms. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define BLOCK 512         /* terms summed in float before they go into a double */
#define SAFE_RANGE 60.0f  /* logits within this range of their maximum: no subtree's sum can underflow in float */
#define NEAR 16.0f        /* a largest path sum that is small enough to stay */
#define MIN_WORK 262144    /* logits a thread must have to be worth starting */
#define MAX_THREADS 256

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define EVERY_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERY_CPU
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef int32_t vint __attribute__((vector_size(LANES * 4)));

/* ------------------------------------------------------------------------------------------ vectors of 16 floats */

INLINE void load(const float *p, vfloat *v) { memcpy(v, p, sizeof *v); }
INLINE void store(float *p, const vfloat *v) { memcpy(p, v, sizeof *v); }

INLINE void choose(const vint *mask, const vfloat *yes, const vfloat *no, vfloat *out) {
    *out = (vfloat)((*mask & (vint)*yes) | (~*mask & (vint)*no));
}

/* exp(x) for x <= 1: 2^n times a polynomial in the rest (Cephes coefficients); below -87.7 it is 0; NaN stays NaN. */
INLINE void exponential(vfloat *x) {
    const vfloat floor_ = (vfloat){0} - 88.0f;
    vint low = *x < floor_;
    choose(&low, &floor_, x, x);
    vfloat n = (*x * 1.44269504088896341f + 12582912.0f) - 12582912.0f; /* round to nearest by the magic number */
    vfloat r = *x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vfloat p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vint power = (__builtin_convertvector(n, vint) + 127) << 23; /* n = -127 gives the bits of 0 */
    *x = p * (vfloat)power;
}

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
    float lanes[LANES];
    memcpy(lanes, v, sizeof lanes);
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
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

/* Sum of exp(x - shift); with out, the terms are stored there. */
INLINE double sum_exp(const float *x, int64_t n, float shift, float *out) {
    double sum = 0;
    vfloat v;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int64_t end = start + BLOCK < n ? start + BLOCK : n, i = start;
        vfloat partial = {0};
        for (; i + LANES <= end; i += LANES) {
            load(x + i, &v);
            v = v - shift;
            exponential(&v);
            partial = partial + v;
            if (out) store(out + i, &v);
        }
        if (i < end) {
            load_tail(x + i, end - i, -INFINITY, &v);
            v = v - shift;
            exponential(&v);
            partial = partial + v;
            if (out) memcpy(out + i, &v, (size_t)(end - i) * sizeof(float));
        }
        sum += total(&partial);
    }
    return sum;
}

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
        sum += total(&partial);
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

/* ------------------------------------------------------------------------------------------ the job */

typedef struct {
    /* the batch */
    const float *z;         /* (rows, cols) logits */
    int64_t rows, cols, nodes;
    const int64_t *target;  /* (rows) table row of each sample, or NULL */
    const double *weight;   /* (table rows) weight of a label in the mean, or NULL for 1 */
    int64_t ignore, labels; /* ignored target; number of table rows */
    int reduction;          /* 0 none, 1 mean, 2 sum */
    float *loss;            /* (rows) */
    float *grad;            /* (rows, cols) or NULL */
    double denominator;
    /* the table, in rows from the label upward */
    const int64_t *start, *node;
    const double *value;
    /* ranges of the nodes in preorder positions, and the column at each position (NULL: the same) */
    const int64_t *low, *high;
    const int32_t *column;
    /* all nodes: parents (nodes means none) and a dense row of targets, shared (stride 0) or one per sample */
    const int64_t *parent;
    const float *dense;
    int64_t dense_stride;
    float *log_probs; /* (rows, nodes): aggregation only */
    /* path sums: z over the nodes -> out over the classes, or (up) a gradient over the classes -> out over the nodes */
    float *out;
    int64_t classes, inner; /* numbers of classes and of inner nodes */
    const int32_t *leaf, *leaf_above;        /* (classes) node of each class, and its parent: 1 + the place among ... */
    const int32_t *inner_node, *inner_above; /* (inner) ... the inner nodes, or 0 for none; parents come first */
    double sharing;
    int centred; /* less the row's largest */
} Job;

typedef struct {
    const Job *job;
    int64_t from, to;
    int failed;
} Share;

INLINE double minus(double a, double b) { return a == b ? 0.0 : a - b; } /* -inf less -inf is 0 here */

/* ------------------------------------------------------------------------------------------ a label's path */

typedef struct {
    double shift, log_sum; /* log-sum-exp of a subtree = shift + log_sum */
} Lse;

INLINE double lse_less(const Lse *a, const Lse *b) { return minus(a->shift, b->shift) + minus(a->log_sum, b->log_sum); }

/* Adds a segment to a running sum (shift, sum) and returns its own shift. */
INLINE float add_segment(const float *x, int64_t from, int64_t to, float *out, double *shift, double *sum) {
    if (from >= to) return -INFINITY;
    float top = largest(x + from, to - from);
    if (top == -INFINITY) {
        const int bad = has_nan(x + from, to - from);
        for (int64_t i = from; out && i < to; i++) out[i] = bad ? NAN : 0;
        if (bad) *sum = NAN;
        return top;
    }
    double part = sum_exp(x + from, to - from, top, out ? out + from : NULL);
    if (top > *shift) {
        *sum = *sum * exp(minus(*shift, top)) + part;
        *shift = top;
    } else {
        *sum += part * exp(top - *shift);
    }
    return top;
}

/* One sample. Columns in preorder are taken segment by segment, outermost last. Where they are in another order
   (job->column), a pass in their own order gives the sum of all, and only the columns below the path's largest proper
   subtree are fetched into `row`, its terms into `terms`. Returns the loss. */
INLINE double path_row(const Job *job, const float *z, int64_t y, double scale, float *grad, Lse *lse, float *shifts,
                       float *row, float *terms) {
    const int64_t cols = job->cols, begin = job->start[y], k = job->start[y + 1] - begin;
    const int64_t *node = job->node + begin;
    const double *value = job->value + begin;
    const int moved = job->column != NULL;
    const float *x = moved ? row : z;
    float *out = !grad ? NULL : moved ? terms : grad;

    int64_t steps = k; /* nodes of the path whose columns are fetched: not those that have all of them */
    while (moved && steps > 0 && job->high[node[steps - 1]] - job->low[node[steps - 1]] == cols) steps--;
    const int64_t first = steps ? job->low[node[steps - 1]] : 0, last = steps ? job->high[node[steps - 1]] : 0;
    float top = 0;
    if (moved) {
        double sum = 0, shift = -INFINITY;
        top = add_segment(z, 0, cols, grad, &shift, &sum);
        for (int64_t j = steps; j <= k; j++) lse[j] = (Lse){shift, log(sum)};
        for (int64_t i = first; i < last; i++) row[i] = z[job->column[i]];
    }
    double shift = -INFINITY, sum = 0;
    int64_t low = job->low[node[0]], high = low;
    for (int64_t j = 0; j < steps + !moved; j++) { /* step k: all that is outside the top's subtree */
        int64_t next_low = j < k ? job->low[node[j]] : 0, next_high = j < k ? job->high[node[j]] : cols;
        shifts[2 * j] = add_segment(x, next_low, low, out, &shift, &sum);
        shifts[2 * j + 1] = add_segment(x, high, next_high, out, &shift, &sum);
        lse[j] = (Lse){shift, log(sum)};
        low = next_low;
        high = next_high;
    }
    if (lse[k].log_sum == -INFINITY) { /* nothing is possible: nan, as in torch */
        for (int64_t i = 0; grad && i < cols; i++) grad[i] = NAN;
        return NAN;
    }
    double loss = 0, mass = 0;
    for (int64_t j = 0; j < k; j++) {
        if (value[j] == 0) continue; /* 0 log 0 = 0 */
        loss -= value[j] * lse_less(&lse[j], &lse[k]);
        mass += value[j];
    }
    if (!grad) return loss;

    /* d loss / d z_i = exp(z_i - L_r) [exp(L_r - L_all) mass - sum_{j >= r} T_j exp(L_r - L_j)], r the innermost node of
       the path above i; the sum from the top down: above_r = T_r + exp(L_r - L_{r+1}) above_{r+1}. */
    double above = 0;
    int64_t outer_low = 0, outer_high = cols;
    for (int64_t j = k; j >= 0; j--) {
        if (j < k) above = value[j] + (j + 1 < k ? exp(lse_less(&lse[j], &lse[j + 1])) * above : 0);
        const double factor = scale * (exp(lse_less(&lse[j], &lse[k])) * mass - above);
        if (moved && j >= steps) {
            Lse own = {top, 0};
            if (j == steps && top != -INFINITY) scale_by(grad, cols, factor * exp(lse_less(&own, &lse[k])));
            outer_low = first;
            outer_high = last;
            continue;
        }
        int64_t in_low = j > 0 ? job->low[node[j - 1]] : job->low[node[0]];
        int64_t in_high = j > 0 ? job->high[node[j - 1]] : job->low[node[0]];
        for (int side = 0; side < 2; side++) {
            int64_t from = side ? in_high : outer_low, to = side ? outer_high : in_low;
            Lse own = {shifts[2 * j + side], 0};
            if (from >= to || own.shift == -INFINITY) continue; /* nothing there, or zeros already */
            scale_by(out + from, to - from, factor * exp(lse_less(&own, &lse[j])));
        }
        outer_low = in_low;
        outer_high = in_high;
    }
    if (moved)
        for (int64_t i = first; i < last; i++) grad[job->column[i]] = terms[i];
    return loss;
}

/* Path sums, the classes' logits: a leaf's own output plus `sharing` times those of all its ancestors, summed in double
   and rounded once. With `centred`, a row whose largest is beyond NEAR has it taken off first: large outputs cost no digits. */
INLINE void sums_down(const Job *job, const float *restrict z, float *restrict out, double *restrict above) {
    const int64_t n = job->classes;
    const int32_t *leaf = job->leaf, *leaf_above = job->leaf_above;
    above[0] = 0;
    for (int64_t i = 0; i < job->inner; i++) /* parents come first */
        above[i + 1] = above[job->inner_above[i]] + (job->sharing == 0 ? 0 : job->sharing * z[job->inner_node[i]]);
    for (int64_t c = 0; c < n; c++) out[c] = (float)(z[leaf[c]] + above[leaf_above[c]]);
    if (!job->centred || fabsf(largest(out, n)) <= NEAR) return;
    double top = -INFINITY;
    for (int64_t c = 0; c < n; c++) {
        const double sum = z[leaf[c]] + above[leaf_above[c]];
        top = sum > top ? sum : top;
    }
    if (top == -INFINITY) return;
    for (int64_t c = 0; c < n; c++) out[c] = (float)(z[leaf[c]] + above[leaf_above[c]] - top);
}

/* The transpose: a class's value goes to its own output, and `sharing` times it to those of its ancestors. */
INLINE void sums_up(const Job *job, const float *restrict grad, float *restrict out, double *restrict below) {
    memset(below, 0, (size_t)(job->inner + 1) * sizeof *below);
    for (int64_t c = 0; c < job->classes; c++) {
        out[job->leaf[c]] = grad[c];
        below[job->leaf_above[c]] += grad[c];
    }
    for (int64_t i = job->inner - 1; i >= 0; i--) {
        out[job->inner_node[i]] = (float)(job->sharing * below[i + 1]);
        below[job->inner_above[i]] += below[i + 1];
    }
}

EVERY_CPU static void path_rows(Share *share) {
    const Job *job = share->job;
    const int64_t cols = job->cols, width = job->leaf ? job->nodes : cols; /* of the softmax, and of the head */
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    int64_t longest = 0;
    for (int64_t b = share->from; b < share->to; b++) {
        if (job->target[b] == job->ignore) continue;
        int64_t k = job->start[job->target[b] + 1] - job->start[job->target[b]];
        if (k > longest) longest = k;
    }
    Lse *lse = malloc((size_t)(longest + 1) * sizeof *lse);
    float *shifts = malloc((size_t)(2 * longest + 2) * sizeof *shifts); /* left and right segment of each step */
    const int moved = job->column || job->leaf;
    float *row = moved ? malloc((size_t)cols * sizeof *row) : NULL;
    float *terms = moved && job->grad ? malloc((size_t)cols * sizeof *terms) : NULL;
    double *above = job->leaf ? malloc((size_t)(job->inner + 1) * sizeof *above) : NULL;
    if (!lse || !shifts || (moved && !row) || (moved && job->grad && !terms) || (job->leaf && !above)) {
        share->failed = 1;
        goto done;
    }
    for (int64_t b = share->from; b < share->to; b++) {
        float *grad = job->grad ? job->grad + b * width : NULL;
        if (job->target[b] == job->ignore) {
            job->loss[b] = (float)(0.0 * scale); /* nan where the mean has nothing to divide by */
            if (grad) memset(grad, 0, (size_t)width * sizeof(float));
            continue;
        }
        const float *z = job->z + b * width;
        double loss;
        if (job->leaf) {
            sums_down(job, z, row, above);
            loss = path_row(job, row, job->target[b], scale, grad ? terms : NULL, lse, shifts, NULL, NULL);
            if (grad) sums_up(job, terms, grad, above);
        } else {
            loss = path_row(job, z, job->target[b], scale, grad, lse, shifts, row, terms);
        }
        job->loss[b] = (float)(scale * loss);
    }
done:
    free(above);
    free(lse);
    free(shifts);
    free(row);
    free(terms);
}

/* ------------------------------------------------------------------------------------------ all nodes */

/* Eight samples are worked on side by side: a node's eight sums are one vector and one cache line, so the passes over
   the parents, whose steps wait for each other, take eight samples forward at once. Logits within SAFE_RANGE of their
   row's maximum share one shift; a row beyond that goes the careful way, where every subtree has its own shift. */

#define GROUP 8
#define TILE 64 /* nodes whose results are written row by row before going on */

typedef double vrows __attribute__((vector_size(GROUP * 8)));
typedef float vratio __attribute__((vector_size(GROUP * 4)));

typedef struct {
    int64_t node;
    int sample;
    double value;
} Entry;

typedef struct {
    vrows *sum;   /* (nodes + 1) sum of each subtree in units of exp(top); the last is the sum of all */
    vratio *ratio; /* (nodes + 1) sum over a node and all above it of target / sum */
    float *term[GROUP]; /* (nodes) exp(logit - top) of each sample: where its gradient will be, if it has one */
    float *spare;       /* (GROUP, nodes) room for the terms without gradients */
    Entry *entry; /* sparse targets of the group, by node */
    int64_t entries, room;
    double *shift, *own, *above; /* (nodes + 1) the careful way, made when first needed */
} Scratch;

INLINE int within_range(const float *x, int64_t n, float top) {
    const float least = top - SAFE_RANGE;
    int close = fabsf(top) <= 3e38f;
    for (int64_t start = 0; close && start < n; start += BLOCK) {
        int64_t end = start + BLOCK < n ? start + BLOCK : n;
        for (int64_t i = start; i < end; i++) close &= x[i] >= least;
    }
    return close;
}

/* log(sum / sum of all) of two nodes for all eight samples; exactly 0 at a root. */
INLINE void two_logs(const vrows *sum, int64_t v, int64_t n, const vrows *share, vfloat *out) {
    const vrows first = sum[v] * *share, second = sum[v + 1 < n ? v + 1 : v] * *share;
    float lanes[LANES];
    for (int r = 0; r < GROUP; r++) lanes[r] = (float)first[r];
    for (int r = 0; r < GROUP; r++) lanes[GROUP + r] = (float)second[r];
    memcpy(out, lanes, sizeof lanes);
    logarithm(out);
}

INLINE void sum_subtrees(const Job *job, const float *const *x, const int *quick, int count, Scratch *s) {
    const int64_t n = job->nodes;
    for (int r = 0; r < count; r++) {
        if (quick[r]) sum_exp(x[r], n, largest(x[r], n), s->term[r]);
        else for (int64_t v = 0; v < n; v++) s->term[r][v] = 1.0f;
    }
    for (int64_t v = 0; v < n; v++)
        for (int r = 0; r < GROUP; r++) s->sum[v][r] = s->term[r][v];
    s->sum[n] = (vrows){0};
    for (int64_t v = n - 1; v >= 0; v--) s->sum[job->parent[v]] += s->sum[v];
}

/* Every subtree's sum with its own shift, for one sample. */
INLINE void careful_sums(const Job *job, const float *x, Scratch *s) {
    const int64_t n = job->nodes;
    for (int64_t v = 0; v < n; v++) {
        s->shift[v] = x[v];
        s->own[v] = x[v] == -INFINITY ? 0 : x[v] == INFINITY ? NAN : 1; /* inf - inf */
    }
    s->shift[n] = -INFINITY;
    s->own[n] = 0;
    for (int64_t v = n - 1; v >= 0; v--) {
        int64_t p = job->parent[v];
        if (s->shift[v] > s->shift[p]) {
            s->own[p] = s->own[p] * exp(s->shift[p] - s->shift[v]) + s->own[v];
            s->shift[p] = s->shift[v];
        } else {
            s->own[p] += s->own[v] * exp(minus(s->shift[v], s->shift[p]));
        }
        if (x[v] != x[v]) s->own[p] = NAN;
    }
    if (s->own[n] == 0) s->own[n] = NAN; /* nothing is possible: nan, as in torch */
}

INLINE Lse careful_lse(const Scratch *s, int64_t v) { return (Lse){s->shift[v], log(s->own[v])}; }

INLINE double careful_log(const Scratch *s, int64_t v, int64_t all) {
    Lse own = careful_lse(s, v), whole = careful_lse(s, all);
    return own.log_sum == -INFINITY && s->own[all] == s->own[all] ? -INFINITY : lse_less(&own, &whole);
}

/* One sample the careful way: its targets are t plus the sparse row. Returns the loss. */
INLINE double careful_row(const Job *job, const float *x, int64_t b, Scratch *s, double scale, float *grad) {
    const int64_t n = job->nodes;
    const float *t = job->dense + b * job->dense_stride;
    careful_sums(job, x, s);
    for (int64_t v = 0; v < n; v++) s->above[v] = t[v];
    if (job->target)
        for (int64_t e = job->start[job->target[b]]; e < job->start[job->target[b] + 1]; e++)
            s->above[job->node[e]] += job->value[e];
    double loss = 0, mass = 0;
    for (int64_t v = 0; v < n; v++) {
        if (s->above[v] == 0) continue;
        loss -= s->above[v] * careful_log(s, v, n);
        mass += s->above[v];
    }
    if (!grad) return loss;
    Lse whole = careful_lse(s, n);
    for (int64_t v = 0; v < n; v++) { /* above_v = T_v + exp(L_v - L_parent) above_parent */
        int64_t p = job->parent[v];
        Lse own = careful_lse(s, v), up = careful_lse(s, p), at = {x[v], 0};
        if (p < n) s->above[v] += exp(lse_less(&own, &up)) * s->above[p];
        double inside = x[v] == -INFINITY ? 0 : exp(lse_less(&at, &own)) * s->above[v];
        grad[v] = (float)(scale * (exp(lse_less(&at, &whole)) * mass - inside));
    }
    return loss;
}

INLINE void group_log_probs(const Job *job, int64_t b, const int *quick, int count, const Scratch *s, const vrows *share) {
    const int64_t n = job->nodes;
    for (int64_t v = 0; v < n; v += 2) {
        vfloat logs;
        two_logs(s->sum, v, n, share, &logs);
        const float *lanes = (const float *)&logs;
        for (int r = 0; r < count; r++) {
            float *out = job->log_probs + (b + r) * n;
            if (!quick[r]) continue;
            out[v] = lanes[r];
            if (v + 1 < n) out[v + 1] = lanes[GROUP + r];
        }
    }
}

static int by_node(const void *a, const void *b) {
    const int64_t x = ((const Entry *)a)->node, y = ((const Entry *)b)->node;
    return (x > y) - (x < y);
}

/* The sparse rows of the group's samples as one list in node order. */
INLINE int collect_entries(const Job *job, int64_t b, const int *quick, int count, Scratch *s) {
    s->entries = 0;
    for (int r = 0; r < count && job->target; r++) {
        if (!quick[r]) continue;
        const int64_t from = job->start[job->target[b + r]], to = job->start[job->target[b + r] + 1];
        if (s->entries + to - from > s->room) {
            s->room = 2 * (s->entries + to - from);
            Entry *grown = realloc(s->entry, (size_t)s->room * sizeof *grown);
            if (!grown) return 0;
            s->entry = grown;
        }
        for (int64_t e = from; e < to; e++) s->entry[s->entries++] = (Entry){job->node[e], r, job->value[e]};
    }
    if (s->entries) qsort(s->entry, (size_t)s->entries, sizeof *s->entry, by_node);
    return 1;
}

/* Losses and gradients of the group in one pass from the top down. */
INLINE void group_rows(const Job *job, int64_t b, const float *const *t, const int *quick, int count, Scratch *s,
                       const vrows *share, double scale, vrows *loss) {
    const int64_t n = job->nodes;
    vrows mass = {0};
    double mass_of_row = 0; /* samples may share their dense row */
    for (int64_t e = 0; e < s->entries; e++) mass[s->entry[e].sample] += s->entry[e].value;
    for (int r = 0; r < GROUP; r++) mass[r] += r > 0 && t[r] == t[r - 1] ? mass_of_row : (mass_of_row = total_of(t[r], n));
    const vrows whole = mass / s->sum[n];
    int64_t next = 0;
    if (job->grad) s->ratio[n] = (vratio){0};
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t end = start + TILE < n ? start + TILE : n;
        vfloat partial = {0};
        for (int64_t v = start; v < end; v += 2) {
            const int64_t w = v + 1 < end ? v + 1 : v;
            float lanes[LANES] = {0};
            for (int r = 0; r < GROUP; r++) lanes[r] = t[r][v];
            if (w > v)
                for (int r = 0; r < GROUP; r++) lanes[GROUP + r] = t[r][w];
            for (; next < s->entries && s->entry[next].node <= w; next++)
                lanes[(s->entry[next].node - v) * GROUP + s->entry[next].sample] += (float)s->entry[next].value;
            vfloat target, logs;
            memcpy(&target, lanes, sizeof target);
            two_logs(s->sum, v, n, share, &logs);
            partial = partial + target * logs;
            if (!job->grad) continue;
            vratio first, second;
            memcpy(&first, lanes, sizeof first);
            memcpy(&second, lanes + GROUP, sizeof second);
            s->ratio[v] = s->ratio[job->parent[v]] + first / __builtin_convertvector(s->sum[v], vratio);
            if (w > v) s->ratio[w] = s->ratio[job->parent[w]] + second / __builtin_convertvector(s->sum[w], vratio);
        }
        for (int r = 0; r < GROUP; r++) (*loss)[r] -= (double)((float *)&partial)[r] + ((float *)&partial)[GROUP + r];
        for (int r = 0; r < count && job->grad; r++) {
            if (!quick[r]) continue;
            float *grad = job->grad + (b + r) * n;
            const float *term = s->term[r];
            const float all = (float)whole[r], by = (float)scale;
            for (int64_t v = start; v < end; v++) grad[v] = by * (term[v] * (all - s->ratio[v][r]));
        }
    }
}

INLINE int careful_scratch(Scratch *s, int64_t n) {
    if (!s->shift) s->shift = malloc((size_t)(n + 1) * sizeof(double));
    if (!s->own) s->own = malloc((size_t)(n + 1) * sizeof(double));
    if (!s->above) s->above = malloc((size_t)(n + 1) * sizeof(double));
    return s->shift && s->own && s->above;
}

EVERY_CPU static void dense_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes;
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    Scratch s = {.spare = job->grad ? NULL : malloc((size_t)(GROUP * n) * sizeof(float))};
    if (posix_memalign((void **)&s.sum, 64, (size_t)(n + 1) * sizeof(vrows))) s.sum = NULL;
    if (job->grad && posix_memalign((void **)&s.ratio, 64, (size_t)(n + 1) * sizeof(vratio))) s.ratio = NULL;
    if (!s.sum || (job->grad ? !s.ratio : !s.spare)) {
        share->failed = 1;
        goto done;
    }
    for (int64_t b = share->from; b < share->to; b += GROUP) {
        const int count = share->to - b < GROUP ? (int)(share->to - b) : GROUP;
        const float *x[GROUP], *t[GROUP];
        int quick[GROUP];
        for (int r = 0; r < GROUP; r++) {
            int64_t i = b + (r < count ? r : 0); /* a group that is not full repeats its first sample */
            x[r] = job->z + i * n;
            t[r] = job->dense ? job->dense + i * job->dense_stride : NULL;
            s.term[r] = job->grad ? job->grad + i * n : s.spare + (i - b) * n;
            quick[r] = r < count && !(job->target && job->target[i] == job->ignore);
            if (quick[r]) quick[r] = within_range(x[r], n, largest(x[r], n));
        }
        sum_subtrees(job, x, quick, count, &s);
        const vrows part = 1.0 / s.sum[n];
        vrows loss = {0};
        if (job->log_probs) {
            group_log_probs(job, b, quick, count, &s, &part);
        } else {
            if (!collect_entries(job, b, quick, count, &s)) {
                share->failed = 1;
                goto done;
            }
            group_rows(job, b, t, quick, count, &s, &part, scale, &loss);
        }
        for (int r = 0; r < count; r++) {
            float *grad = job->grad ? job->grad + (b + r) * n : NULL;
            const int ignored = job->target && job->target[b + r] == job->ignore;
            if (!quick[r] && !ignored && !careful_scratch(&s, n)) {
                share->failed = 1;
                goto done;
            }
            if (job->log_probs) {
                if (quick[r]) continue;
                careful_sums(job, x[r], &s);
                for (int64_t v = 0; v < n; v++) job->log_probs[(b + r) * n + v] = (float)careful_log(&s, v, n);
            } else if (ignored) {
                job->loss[b + r] = (float)(0.0 * scale); /* nan where the mean has nothing to divide by */
                if (grad) memset(grad, 0, (size_t)n * sizeof(float));
            } else {
                job->loss[b + r] = (float)(scale * (quick[r] ? loss[r] : careful_row(job, x[r], b + r, &s, scale, grad)));
            }
        }
    }
done:
    free(s.sum);
    free(s.ratio);
    free(s.spare);
    free(s.entry);
    free(s.shift);
    free(s.own);
    free(s.above);
}

/* ------------------------------------------------------------------------------------------ path sums alone */

EVERY_CPU static void down_rows(Share *share) {
    const Job *job = share->job;
    double *above = malloc((size_t)(job->inner + 1) * sizeof *above);
    share->failed = !above;
    for (int64_t b = share->from; b < share->to && !share->failed; b++)
        sums_down(job, job->z + b * job->nodes, job->out + b * job->classes, above);
    free(above);
}

EVERY_CPU static void up_rows(Share *share) {
    const Job *job = share->job;
    double *below = malloc((size_t)(job->inner + 1) * sizeof *below);
    share->failed = !below;
    for (int64_t b = share->from; b < share->to && !share->failed; b++)
        sums_up(job, job->z + b * job->classes, job->out + b * job->nodes, below);
    free(below);
}

/* ------------------------------------------------------------------------------------------ threads and Python */

static void *down_thread(void *share) { down_rows(share); return NULL; }
static void *up_thread(void *share) { up_rows(share); return NULL; }

static void *path_thread(void *share) { path_rows(share); return NULL; }
static void *dense_thread(void *share) { dense_rows(share); return NULL; }

/* Runs a job on up to `threads` threads. Returns 0 when memory ran out. */
static int run(const Job *job, void *(*work)(void *), int64_t threads) {
    const int64_t unit = work == dense_thread ? GROUP : 1; /* rows that are worked on together stay together */
    const int64_t units = (job->rows + unit - 1) / unit, most = job->rows * job->cols / MIN_WORK + 1;
    if (threads > most) threads = most;
    if (threads > units) threads = units;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads < 1) threads = 1;
    Share shares[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    int started[MAX_THREADS], failed = 0;
    for (int64_t i = 0; i < threads; i++) {
        const int64_t to = units * (i + 1) / threads * unit;
        shares[i] = (Share){job, units * i / threads * unit, to < job->rows ? to : job->rows, 0};
    }
    for (int64_t i = 1; i < threads; i++) started[i] = pthread_create(&ids[i], NULL, work, &shares[i]) == 0;
    work(&shares[0]);
    for (int64_t i = 1; i < threads; i++) {
        if (started[i]) pthread_join(ids[i], NULL);
        else work(&shares[i]);
    }
    for (int64_t i = 0; i < threads; i++) failed |= shares[i].failed;
    return !failed;
}

/* Position of the first target that is neither ignored nor a table row, or -1; sums up the mean's denominator. */
static int64_t check_targets(Job *job) {
    job->denominator = 0;
    for (int64_t b = 0; b < job->rows; b++) {
        int64_t y = job->target ? job->target[b] : 0;
        if (job->target && y == job->ignore) continue;
        if (job->target && (y < 0 || y >= job->labels)) return b;
        job->denominator += job->target && job->weight ? job->weight[y] : 1.0;
    }
    return -1;
}

static PyObject *finish(Job *job, void *(*work)(void *), int64_t threads) {
    int64_t bad = check_targets(job);
    if (bad >= 0) return PyLong_FromLongLong(bad);
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run(job, work, threads);
    Py_END_ALLOW_THREADS
    return done ? PyLong_FromLong(-1) : PyErr_NoMemory();
}

#define POINTER(T, i) ((T)(uintptr_t)PyLong_AsUnsignedLongLong(args[i]))
#define NUMBER(i) PyLong_AsLongLong(args[i])

static int arguments(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, given);
    return 0;
}

static PyObject *path_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("path_loss", count, 17)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .loss = POINTER(float *, 3),
               .grad = POINTER(float *, 4), .target = POINTER(const int64_t *, 5), .ignore = NUMBER(6),
               .weight = POINTER(const double *, 7), .reduction = (int)NUMBER(8), .labels = NUMBER(9),
               .start = POINTER(const int64_t *, 10), .node = POINTER(const int64_t *, 11),
               .value = POINTER(const double *, 12), .low = POINTER(const int64_t *, 13),
               .high = POINTER(const int64_t *, 14), .column = POINTER(const int32_t *, 15)};
    int64_t threads = NUMBER(16);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, path_thread, threads);
}

static PyObject *path_sum_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("path_sum_loss", count, 23)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .nodes = NUMBER(2), .loss = POINTER(float *, 3),
               .grad = POINTER(float *, 4), .target = POINTER(const int64_t *, 5), .ignore = NUMBER(6),
               .weight = POINTER(const double *, 7), .reduction = (int)NUMBER(8), .labels = NUMBER(9),
               .start = POINTER(const int64_t *, 10), .node = POINTER(const int64_t *, 11),
               .value = POINTER(const double *, 12), .low = POINTER(const int64_t *, 13),
               .high = POINTER(const int64_t *, 14), .cols = NUMBER(15), .classes = NUMBER(15),
               .inner = NUMBER(16), .leaf = POINTER(const int32_t *, 17), .leaf_above = POINTER(const int32_t *, 18),
               .inner_node = POINTER(const int32_t *, 19), .inner_above = POINTER(const int32_t *, 20),
               .sharing = PyFloat_AsDouble(args[21]), .centred = 1};
    int64_t threads = NUMBER(22);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, path_thread, threads);
}

static PyObject *dense_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("dense_loss", count, 17)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .loss = POINTER(float *, 3), .grad = POINTER(float *, 4), .target = POINTER(const int64_t *, 5),
               .ignore = NUMBER(6), .weight = POINTER(const double *, 7), .reduction = (int)NUMBER(8),
               .labels = NUMBER(9), .start = POINTER(const int64_t *, 10), .node = POINTER(const int64_t *, 11),
               .value = POINTER(const double *, 12), .parent = POINTER(const int64_t *, 13),
               .dense = POINTER(const float *, 14), .dense_stride = NUMBER(15)};
    int64_t threads = NUMBER(16);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, dense_thread, threads);
}

static PyObject *node_log_probs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("node_log_probs", count, 6)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .log_probs = POINTER(float *, 3), .parent = POINTER(const int64_t *, 4)};
    int64_t threads = NUMBER(5);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, dense_thread, threads);
}

static PyObject *path_sums(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("path_sums", count, 13)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .out = POINTER(float *, 2), .nodes = NUMBER(3),
               .classes = NUMBER(4), .inner = NUMBER(5), .leaf = POINTER(const int32_t *, 6),
               .leaf_above = POINTER(const int32_t *, 7), .inner_node = POINTER(const int32_t *, 8),
               .inner_above = POINTER(const int32_t *, 9), .sharing = PyFloat_AsDouble(args[10]),
               .centred = (int)NUMBER(11) == 1};
    const int up = NUMBER(11) == 2;
    int64_t threads = NUMBER(12);
    if (PyErr_Occurred()) return NULL;
    job.cols = job.nodes;
    return finish(&job, up ? up_thread : down_thread, threads);
}

static PyMethodDef methods[] = {
    {"path_loss", (PyCFunction)(void (*)(void))path_loss, METH_FASTCALL,
     "Losses (and gradients) of samples whose table row is on one path of a tree."},
    {"path_sum_loss", (PyCFunction)(void (*)(void))path_sum_loss, METH_FASTCALL,
     "The same of path sums: losses over the classes, gradients of the outputs of all nodes."},
    {"dense_loss", (PyCFunction)(void (*)(void))dense_loss, METH_FASTCALL,
     "Losses (and gradients) of samples whose table row may touch every node of a tree."},
    {"node_log_probs", (PyCFunction)(void (*)(void))node_log_probs, METH_FASTCALL,
     "log q* of every node of a tree."},
    {"path_sums", (PyCFunction)(void (*)(void))path_sums, METH_FASTCALL,
     "Sums of outputs along the path of every class: down (0), down and centred (1), or the transpose, up (2)."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", "Compiled losses over trees.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }
