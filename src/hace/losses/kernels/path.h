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

/* Where columns are not in preorder, `branch` says for each the first position of the widest subtree around it that has not
   all columns. Sum of exp(x - shift), at least LANES of them, the terms going to out; `inside` gets the sum of those in one
   branch. */
INLINE double sum_branch(const float *x, const int32_t *branch, int32_t own, int64_t n, float shift, int capped, float *out,
                         double *inside) {
    const vint lane = {NUMBERS};
    double sum = 0;
    *inside = 0;
    vfloat v;
    vint at;
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t end = start + BLOCK < n ? start + BLOCK : n;
        int64_t i = start;
        vfloat partial = {0}, within = {0};
        for (; i + LANES <= end; i += LANES) {
            load(x + i, &v);
            memcpy(&at, branch + i, sizeof at);
            exp_less(&v, shift, capped);
            store(out + i, &v);
            partial = partial + v;
            within = within + (vfloat)((vint)v & (at == own));
        }
        if (i < end) { /* the last ones overlap those before them, which count once */
            load(x + end - LANES, &v);
            memcpy(&at, branch + end - LANES, sizeof at);
            exp_less(&v, shift, capped);
            store(out + end - LANES, &v);
            v = (vfloat)((vint)v & (lane >= (int32_t)(LANES - (end - i))));
            partial = partial + v;
            within = within + (vfloat)((vint)v & (at == own));
        }
        sum += total(&partial);
        *inside += total(&within);
    }
    return sum;
}

/* Multiplies the terms of one branch by one factor, all others by another. */
INLINE void scale_branch(float *x, const int32_t *branch, int32_t own, int64_t n, double inside, double outside) {
    const vfloat in = (vfloat){0} + (float)inside, out = (vfloat){0} + (float)outside;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vfloat v, factor;
        vint at;
        load(x + i, &v);
        memcpy(&at, branch + i, sizeof at);
        const vint mine = at == own;
        choose(&mine, &in, &out, &factor);
        v = v * factor;
        store(x + i, &v);
    }
    for (; i < n; i++) x[i] *= branch[i] == own ? (float)inside : (float)outside;
}

/* Whether positions first .. last are a branch, and so wide that masks are faster than fetching its columns. */
INLINE int is_wide_branch(const Job *job, int64_t first, int64_t last) {
    if (!job->branch || job->cols < LANES || (last - first) * WIDE < job->cols) return 0;
    return job->branch[job->column[first]] == first && (last == job->cols || job->branch[job->column[last]] != first);
}

/* The rest of a quick sample whose path has no subtree wider than a vector, but for those with all columns. The vector begins
   at `at`; no loop or branch depends on where in the row the label is. Logarithms come last: a call keeps no vector. */
INLINE double window_row(const Job *job, float *term, int64_t at, const int64_t *node, const double *value, int64_t k,
                         int64_t steps, double all, double scale, double *sums) {
    const vint lane = {NUMBERS};
    double loss = 0, mass = 0, above = 0;
    for (int64_t j = 0; j < k; j++) mass += value[j];
    for (int64_t j = k - 1; j >= steps; j--) above += value[j] / all;
    const double outside = scale * (mass / all - above);
    vfloat window, factor = (vfloat){0} + (float)outside;
    load(term + at, &window);
    for (int64_t j = steps - 1; j >= 0; j--) {
        const vint mine = (lane >= (int32_t)(job->low[node[j]] - at)) & (lane < (int32_t)(job->high[node[j]] - at));
        const vfloat inside = (vfloat)((vint)window & mine);
        sums[j] = total(&inside);
        above += value[j] / sums[j];
        const vfloat own = (vfloat){0} + (float)(scale * (mass / all - above));
        choose(&mine, &own, &factor, &factor);
    }
    if (job->grad) {
        scale_by(term, job->cols, outside);
        window = window * factor;
        store(term + at, &window);
    }
    for (int64_t j = 0; j < steps; j++)
        if (value[j] != 0) loss -= value[j] * log(sums[j] / all);
    return loss;
}

/* One sample for which one shift serves the whole row, so that a node's factor in the gradient is
   mass / S_all - sum_{j >= r} T_j / S_j, without any further exponential. With `capped` the shift is the logit of the label:
   its own term is 1, so that no sum along its path can underflow. Returns NaN where the sum of all is beyond `most`, or NaN. */
INLINE double quick_path_row(const Job *job, const float *z, float shift, int capped, double most, int64_t y, double scale,
                             float *term, double *sums, float *row) {
    const int64_t cols = job->cols, begin = job->start[y], k = job->start[y + 1] - begin;
    const int64_t *node = job->node + begin;
    const double *value = job->value + begin;
    const int moved = job->column != NULL;
    int64_t steps = k; /* nodes of the path that have not all of the columns */
    while (steps > 0 && job->high[node[steps - 1]] - job->low[node[steps - 1]] == cols) steps--;
    int64_t first = steps ? job->low[node[steps - 1]] : 0, last = steps ? job->high[node[steps - 1]] : 0;
    const int wide = moved && steps && is_wide_branch(job, first, last);
    const int32_t own = (int32_t)first;
    double inside = 0;
    const double all = wide ? sum_branch(z, job->branch, own, cols, shift, capped, term, &inside)
                            : sum_terms(z, cols, shift, capped, term);
    if (!(all <= most)) return NAN;
    if (!moved && last - first <= LANES && cols >= LANES && cols <= BLOCK)
        return window_row(job, term, first + LANES <= cols ? first : cols - LANES, node, value, k, steps, all, scale, sums);
    const int64_t fetched = steps - wide; /* nodes whose columns are segments of a row */
    if (wide) first = fetched ? job->low[node[fetched - 1]] : 0, last = fetched ? job->high[node[fetched - 1]] : 0;
    for (int64_t i = first; moved && i < last; i++) row[i] = term[job->column[i]];
    const float *x = moved ? row : term;
    double sum = 0, loss = 0, mass = 0;
    int64_t low = fetched ? job->low[node[0]] : 0, high = low;
    for (int64_t j = 0; j < k; j++) {
        if (j < fetched) {
            sum += total_of(x + job->low[node[j]], low - job->low[node[j]]);
            sum += total_of(x + high, job->high[node[j]] - high);
            low = job->low[node[j]];
            high = job->high[node[j]];
        }
        sums[j] = j < fetched ? sum : j < steps ? inside : all;
        mass += value[j];
        if (value[j] != 0 && j < steps) loss -= value[j] * log(sums[j] / all);
    }
    if (!job->grad) return loss;

    double above = 0;
    for (int64_t j = k - 1; j >= steps; j--) above += value[j] / all;
    const double outside = scale * (mass / all - above);
    if (wide) {
        above += value[steps - 1] / inside;
        scale_branch(term, job->branch, own, cols, scale * (mass / all - above), outside);
    } else if (moved || !steps) {
        scale_by(term, cols, outside);
    } else {
        scale_by(term, first, outside), scale_by(term + last, cols - last, outside);
    }
    float *out = moved ? row : term;
    int64_t outer_low = first, outer_high = last;
    for (int64_t j = fetched - 1; j >= 0; j--) {
        above += value[j] / sums[j];
        const double factor = scale * (mass / all - above);
        const int64_t in_low = j ? job->low[node[j - 1]] : outer_high, in_high = j ? job->high[node[j - 1]] : outer_high;
        scale_by(out + outer_low, in_low - outer_low, factor);
        scale_by(out + in_high, outer_high - in_high, factor);
        outer_low = in_low;
        outer_high = in_high;
    }
    for (int64_t i = first; moved && i < last; i++) term[job->column[i]] = row[i];
    return loss;
}

/* The first logit at or below a label, or NaN for a label without targets. */
INLINE float label_logit(const Job *job, const float *z, int64_t y) {
    if (job->start[y] == job->start[y + 1]) return NAN;
    const int64_t at = job->low[job->node[job->start[y]]];
    return z[job->column ? job->column[at] : at];
}

static void path_rows(Share *share) {
    const Job *job = share->job;
    const int64_t cols = job->cols;
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    int64_t longest = 0;
    for (int64_t b = share->from; b < share->to; b++) {
        if (job->target[b] == job->ignore) continue;
        int64_t k = job->start[job->target[b] + 1] - job->start[job->target[b]];
        if (k > longest) longest = k;
    }
    Lse *lse = malloc((size_t)(longest + 1) * sizeof *lse);
    float *shifts = malloc((size_t)(2 * longest + 2) * sizeof *shifts); /* left and right segment of each step */
    const int moved = job->column != NULL;
    float *row = moved ? malloc((size_t)cols * sizeof *row) : NULL;
    float *terms = moved || !job->grad ? malloc((size_t)cols * sizeof *terms) : NULL;
    double *sums = malloc((size_t)(longest + 1) * sizeof *sums);
    if (!lse || !shifts || (moved && !row) || ((moved || !job->grad) && !terms) || !sums) {
        share->failed = 1;
        goto done;
    }
    for (int64_t b = share->from; b < share->to; b++) {
        float *grad = job->grad ? job->grad + b * cols : NULL;
        if (job->target[b] == job->ignore) {
            job->loss[b] = (float)(0.0 * scale); /* nan where the mean has nothing to divide by */
            if (grad) memset(grad, 0, (size_t)cols * sizeof(float));
            continue;
        }
        const float *z = job->z + b * cols;
        const int64_t y = job->target[b];
        float *term = grad ? grad : terms, shift = label_logit(job, z, y);
        double loss = NAN;
        if (fabsf(shift) <= 3e38f) loss = quick_path_row(job, z, shift, 1, NEAR_SUM, y, scale, term, sums, row);
        if (loss != loss && close_together(z, cols, &shift))
            loss = quick_path_row(job, z, shift, 0, INFINITY, y, scale, term, sums, row);
        if (loss != loss) loss = path_row(job, z, y, scale, grad, lse, shifts, row, terms);
        job->loss[b] = (float)(scale * loss);
    }
done:
    free(lse);
    free(sums);
    free(shifts);
    free(row);
    free(terms);
}


/* ------------------------------------------------------------------------------------------ without the label's branch */

/* One sample of the leave-one-out term: for every node b_m of the path but the top, log-sum-exp C_m of what is outside its
   subtree, less the logit of its parent. What is outside only grows from the top down to the label, so nothing is subtracted. */
INLINE double outside_row(const Job *job, const float *z, int64_t y, double scale, float *grad, Lse *lse, float *shifts) {
    const int64_t k = job->start[y + 1] - job->start[y], *node = job->node + job->start[y];
    double shift = -INFINITY, sum = 0, loss = 0;
    int64_t low = 0, high = job->cols;
    for (int64_t j = k; j > 0; j--) { /* ring j: below b_j, all columns for j = k, and outside b_{j-1} */
        const int64_t in_low = node[j - 1], in_high = job->ends[node[j - 1]];
        shifts[2 * j - 2] = add_segment(z, low, in_low, grad, &shift, &sum);
        shifts[2 * j - 1] = add_segment(z, in_high, high, grad, &shift, &sum);
        lse[j - 1] = (Lse){shift, log(sum)};
        if (j < k) {
            const Lse own = {z[node[j]], 0};
            loss += own.shift == -INFINITY ? INFINITY : lse_less(&lse[j - 1], &own);
        }
        low = in_low, high = in_high;
    }
    if (!grad) return loss;
    /* d loss / d z_i = sum_{m < r} exp(z_i - C_m) in ring r, where the sum is exp(z_i - C_{r-1}) from_r,
       from_r = 1 + exp(C_{r-1} - C_{r-2}) from_{r-1}; less 1 at the path's inner nodes. */
    memset(grad + low, 0, (size_t)(high - low) * sizeof *grad);
    double from = 0;
    for (int64_t j = 1; j <= k; j++) {
        const int64_t at = j < k ? j - 1 : k - 2; /* the top has no parent: the ring around it shares the factor */
        const int64_t out_low = j < k ? node[j] : 0, out_high = j < k ? job->ends[node[j]] : job->cols;
        if (j < k) from = 1 + (j > 1 ? exp(lse_less(&lse[j - 1], &lse[j - 2])) * from : 0);
        for (int side = 0; side < 2; side++) {
            const int64_t first = side ? high : out_low, last = side ? out_high : low;
            const Lse own = {shifts[2 * j - 2 + side], 0};
            if (first >= last || own.shift == -INFINITY) continue; /* nothing there, or zeros already */
            scale_by(grad + first, last - first, k > 1 ? scale * from * exp(lse_less(&own, &lse[at])) : 0);
        }
        low = out_low, high = out_high;
    }
    for (int64_t j = 1; j < k; j++) grad[node[j]] -= (float)scale;
    return loss;
}

static void outside_rows(Share *share) {
    const Job *job = share->job;
    const int64_t cols = job->cols, levels = deepest(job->level, cols) + 1;
    Lse *lse = malloc((size_t)levels * sizeof *lse);
    float *shifts = malloc((size_t)(2 * levels) * sizeof *shifts);
    share->failed = !lse || !shifts;
    for (int64_t b = share->from; b < share->to && !share->failed; b++) {
        float *grad = job->grad ? job->grad + b * cols : NULL;
        const int64_t y = job->target[b];
        const double by = job->strength * scale_of(job, y);
        if (y == job->ignore && grad) memset(grad, 0, (size_t)cols * sizeof *grad);
        job->loss[b] = y == job->ignore ? 0 : (float)(by * outside_row(job, job->z + b * cols, y, by, grad, lse, shifts));
    }
    free(lse), free(shifts);
}
