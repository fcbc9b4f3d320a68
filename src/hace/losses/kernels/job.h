/* What a call is given, and the loops that may do its work. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "places.h"

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

/* Works on some rows of a job, of which `group` are side by side. */
typedef struct {
    void (*rows)(Share *);
    int64_t group;
} Work;

/* All loops, compiled for one kind of processor: a level. */
typedef struct {
    const char *name;
    int64_t lanes; /* floats in a vector, and samples in a group */
    Work path, outside, path_sums, dense, dag, siblings, lca_groups; /* losses */
    Work down, up, answers, best_columns, levels, walk, spread;
    double (*total_of)(const float *, int64_t);
} Level;

#if defined(__x86_64__) && defined(__GNUC__)
#define LEVELS_OF_X86
#endif
#define HIDDEN __attribute__((visibility("hidden")))

extern HIDDEN const Level hace_portable;
#ifdef LEVELS_OF_X86
extern HIDDEN const Level hace_avx2, hace_avx512;
#endif
