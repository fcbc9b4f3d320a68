/* All loops for one kind of processor: a file that chooses LEVEL, LEVEL_NAME and LANES includes this after `job.h`.

   LANES floats, 4, 8 or 16, fit into one of its registers: a wider vector would compile to code without any. */

#include "vectors.h"
#include "path.h"
#include "sums.h"
#include "nodes.h"
#include "label_losses.h"
#include "answers.h"

static double sum_of_row(const float *x, int64_t n) { return total_of(x, n); }

const Level LEVEL = {
    .name = LEVEL_NAME,
    .lanes = LANES,
    .path = {path_rows, 1},
    .outside = {outside_rows, 1},
    .path_sums = {sum_rows, GROUP},
    .dense = {dense_rows, GROUP},
    .dag = {dag_rows, GROUP},
    .siblings = {sibling_rows, 1},
    .lca_groups = {group_rows, 1},
    .down = {down_rows, 1},
    .up = {up_rows, 1},
    .answers = {answer_rows, GROUP},
    .best_columns = {rank_rows, 1},
    .levels = {level_rows, GROUP},
    .walk = {walk_rows, 1},
    .spread = {spread_rows, 1},
    .total_of = sum_of_row,
};
