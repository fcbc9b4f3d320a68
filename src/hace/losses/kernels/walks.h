/* Ways between columns and nodes that follow lists: down a hierarchy, and from the leaves to their nodes. */

/* From the top, always to the child of greatest mass, of equal ones the first; a leaf repeats. The children of node v are
   `node[start[v]]` and on, `high[v]` of them; those of the virtual root, -1, are the last list. */
static void walk_rows(Share *share) {
    const Job *job = share->job;
    const int64_t n = job->nodes, steps = job->best;
    for (int64_t b = share->from; b < share->to; b++) {
        const float *z = job->z + b * n;
        int64_t at = job->ignore;
        float mass = at < 0 ? 0 : z[at];
        for (int64_t j = 0; j < steps; j++) {
            job->answer[b * steps + j] = at;
            job->top[b * steps + j] = mass;
            const int64_t list = at < 0 ? n : at;
            const int64_t *child = job->node + job->start[list];
            for (int64_t i = 0; i < job->high[list]; i++)
                if (i == 0 || z[child[i]] > mass) at = child[i], mass = z[at];
        }
    }
}

/* (rows, cols) -> (rows, nodes): column c to node[c], and -inf to all others. */
static void spread_rows(Share *share) {
    const Job *job = share->job;
    for (int64_t b = share->from; b < share->to; b++) {
        const float *z = job->z + b * job->cols;
        float *out = job->out + b * job->nodes;
        for (int64_t v = 0; v < job->nodes; v++) out[v] = -INFINITY;
        for (int64_t c = 0; c < job->cols; c++) out[job->node[c]] = z[c];
    }
}
