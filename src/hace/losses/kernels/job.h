/* ------------------------------------------------------------------------------------------ the job */

typedef struct {
    /* the batch */
    const float *z;         /* (rows, cols) logits */
    int64_t rows, cols, nodes;
    const int64_t *target;  /* (rows) table row of each sample, or NULL */
    const double *weight;   /* (table rows) weight of a label in the mean, or NULL for 1 */
    int64_t ignore, labels; /* ignored target; number of table rows */
    int reduction;          /* 0 none, 1 mean, 2 sum */
    float *loss;            /* (rows), or with `summed` their sum */
    int summed;
    float *grad;            /* (rows, cols) or NULL */
    double denominator;
    /* the table, in rows from the label upward */
    const int64_t *start, *node;
    const double *value;
    /* ranges of the nodes in preorder positions, and the column at each position (NULL: the same) */
    const int64_t *low, *high;
    const int32_t *column;
    const int32_t *branch; /* (cols) where each column's widest subtree but the whole begins, where columns have other positions */
    /* all nodes: parents (nodes means none) and a dense row of targets, shared (stride 0) or one per sample */
    const int64_t *parent;
    const float *dense;
    int64_t dense_stride;
    float *log_probs; /* (rows, nodes): aggregation only */
    /* the tree: each node's level, the tops' being 0, and where its subtree ends; nodes in preorder */
    const int32_t *level;
    const int64_t *ends;
    const Place *places; /* as list_places lists them */
    int rooted;
    /* lists of nodes: siblings by parent (1 + the parent, 0 for the tops), or all at and below a node of a DAG */
    const int64_t *first;
    const int32_t *member;
    /* distances from a label to the classes: own[label] + at[common ancestor] + leaf[class], 0 at the class `itself` */
    const double *own, *at, *leaf;
    const int64_t *itself;
    double outside, strength;
    int kind;
    /* path sums: z over the nodes -> out over the classes, or (up) a gradient over the classes -> out over the nodes */
    float *out;
    int64_t classes;
    double sharing;
    int centred; /* less the row's largest */
    /* what answers are worth, by node; with `order` only leaves are answers, in that order */
    const double *gain, *scale, *inside, *constant, *reach, *sample;
    double begin, factor, tie;
    const int64_t *order;
    int64_t *answer;             /* (rows) by that order; or (rows, best) columns or nodes */
    int64_t best;
    double *answer_mass, *worth; /* (rows); or (rows, best) sums of squares */
    float *top;                  /* (rows) the largest score; or (rows, best) masses */
} Job;

typedef struct {
    const Job *job;
    int64_t from, to;
    int failed;
} Share;

/* What a sample's loss is multiplied by, where the label's weight is not in its table. */
INLINE double scale_of(const Job *job, int64_t y) {
    const double scale = job->reduction == 1 ? 1.0 / job->denominator : 1.0;
    return job->weight && y != job->ignore ? scale * job->weight[y] : scale;
}

INLINE double minus(double a, double b) { return a == b ? 0.0 : a - b; } /* -inf less -inf is 0 here */

