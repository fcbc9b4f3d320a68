/* The compiled accelerator of hace: losses and aggregation over trees, float32, on the CPU.

   It computes what hace/losses/numerics.py computes and is held by the same tests. Plain C, no torch headers: Python passes
   the addresses of contiguous buffers and keeps them alive. The interpreter lock is released while it works.

   Each header is one idea: `lanes.h` vectors, `vectors.h` rows and eight samples side by side, `places.h` where a tree's nodes
   are, `job.h` what a call is given, `path.h` the label's path, `sums.h` path sums, `nodes.h` targets at all nodes of a tree or
   DAG, `label_losses.h` losses without a table, `answers.h` what evaluation asks. The files `level_*.c` compile all loops for one
   kind of processor each. Here are the choice among them, the threads, and what Python calls.

   Two ideas carry the losses over trees.
   1. In preorder a subtree is a range. The ranges of a label's path are nested, so a row of logits splits into at most
      2K + 1 segments, and one pass from the innermost outward gives the log-sum-exp L_j of every ancestor. Each segment
      is shifted by its own maximum and sums only grow: nothing cancels, underflows or overflows, whatever the logits.
   2. Where all nodes matter, one pass over the parents upward gives every subtree's sum, one downward the gradient.

   Scalars are double, rows are float; a sum of many floats is folded into a double every BLOCK terms. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include "job.h"

#define MIN_WORK 262144 /* logits a thread must have to be worth starting */
#define MAX_THREADS 256
#define CACHED_BYTES (1 << 20) /* of a processor's own cache */

/* ------------------------------------------------------------------------------------------ levels */

#ifdef LEVELS_OF_X86
static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

/* The levels that this processor can run, the best first; NULL ends them. */
static const Level *levels[4];
static const Level *level; /* the one in use */

static const Level *level_after(const Level *one) {
    int i = 0;
    while (levels[i] != one) i++;
    return levels[i + 1];
}

static void list_levels(void) {
    int count = 0;
#ifdef LEVELS_OF_X86
    __builtin_cpu_init();
    if (has_avx512()) levels[count++] = &hace_avx512;
    if (has_avx2()) levels[count++] = &hace_avx2;
#endif
    levels[count] = &hace_portable;
    level = levels[0];
}

/* The level for samples side by side, of which `cells` are at hand at once: groups of sixteen are left half empty by small batches,
   and those of large trees leave the cache. */
static const Level *grouped_level(const Job *job, int64_t cells) {
    const int too_wide = job->rows <= level->lanes / 2 || cells * level->lanes * (int64_t)sizeof(float) > CACHED_BYTES;
    return level->lanes == 16 && too_wide ? level_after(level) : level;
}

/* ------------------------------------------------------------------------------------------ threads */

/* Work on the rows of a batch, by one thread or several. */

typedef struct {
    const Job *job;
    const Work *work;
    int64_t unit, units, parts; /* rows that are worked on together stay together: a unit */
    int64_t next;               /* the first part that nobody has begun */
    int failed;
} Queue;

/* Works on parts until none is left. */
static void *take_parts(void *given) {
    Queue *q = given;
    for (int64_t i; (i = __atomic_fetch_add(&q->next, 1, __ATOMIC_RELAXED)) < q->parts;) {
        const int64_t from = q->units * i / q->parts * q->unit, to = q->units * (i + 1) / q->parts * q->unit;
        Share share = {q->job, from, to < q->job->rows ? to : q->job->rows, 0};
        q->work->rows(&share);
        if (share.failed) __atomic_store_n(&q->failed, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void take_parts_in_team(void *given) { take_parts(given); }

/* torch's own threads (of its OpenMP), where they are at hand: they wait for work, and threads of ours would compete with them
   for the cores. A forked child has lost them. */
#ifdef __linux__
extern void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags) __attribute__((weak));
static int has_team = 1;
static void lose_team(void) { has_team = 0; }

static int run_in_team(Queue *q, int64_t threads) {
    if (!has_team || !GOMP_parallel) return 0;
    GOMP_parallel(take_parts_in_team, q, (unsigned)threads, 0);
    return 1;
}
#else
static void lose_team(void) {}
static int run_in_team(Queue *q, int64_t threads) { return (void)q, (void)threads, 0; }
#endif

/* Without them: threads that end with the job. */
static void run_in_threads(Queue *q, int64_t threads) {
    pthread_t ids[MAX_THREADS];
    int64_t started = 0;
    while (started + 1 < threads && pthread_create(&ids[started], NULL, take_parts, q) == 0) started++;
    take_parts(q);
    while (started > 0) pthread_join(ids[--started], NULL);
}

/* Runs a job on up to `threads` threads, in more parts than threads: a thread that starts late or has less of a core takes
   fewer. Returns 0 when memory ran out. */
static int run(const Job *job, const Work *work, int64_t threads) {
    Queue q = {.job = job, .work = work, .unit = work->group};
    q.units = (job->rows + q.unit - 1) / q.unit;
    const int64_t most = job->rows * job->cols / MIN_WORK + 1;
    if (threads > most) threads = most;
    if (threads > q.units) threads = q.units;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    q.parts = threads > 1 ? threads * (work->group > 1 ? 2 : 4) : 1; /* each part of groups sets up its own tables */
    if (q.parts > q.units) q.parts = q.units;
    if (threads <= 1) take_parts(&q);
    else if (!run_in_team(&q, threads)) run_in_threads(&q, threads);
    return !q.failed;
}

/* ------------------------------------------------------------------------------------------ Python */

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

static PyObject *finish(Job *job, const Work *work, int64_t threads) {
    int64_t bad = check_targets(job);
    if (bad >= 0) return PyLong_FromLongLong(bad);
    float *sum = job->summed ? job->loss : NULL;
    if (sum && !(job->loss = malloc((size_t)job->rows * sizeof(float)))) return PyErr_NoMemory();
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run(job, work, threads);
    Py_END_ALLOW_THREADS
    if (sum) {
        *sum = (float)level->total_of(job->loss, job->rows);
        free(job->loss);
    }
    return done ? PyLong_FromLong(-1) : PyErr_NoMemory();
}

/* A job over a tree whose places the caller may not have listed. */
static PyObject *finish_tree(Job *job, const Work *work, int64_t threads) {
    Place *made = job->places ? NULL : malloc((size_t)PLACES(job->nodes) * sizeof *made);
    if (!job->places && (!made || !list_places(job->level, job->nodes, made))) return free(made), PyErr_NoMemory();
    if (made) job->places = made;
    PyObject *done = finish(job, work, threads);
    free(made);
    return done;
}

#define POINTER(T, i) ((T)(uintptr_t)PyLong_AsUnsignedLongLong(args[i]))
#define NUMBER(i) PyLong_AsLongLong(args[i])

static int arguments(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, given);
    return 0;
}

/* What a loss is called with: the batch, the addresses of its own tensors, its own numbers, and how many threads may work. */
#define BATCH 11
#define INTEGERS(i) POINTER(const int64_t *, BATCH + (i))
#define SHORTS(i) POINTER(const int32_t *, BATCH + (i))
#define DOUBLES(i) POINTER(const double *, BATCH + (i))
#define SCALAR(i) PyFloat_AsDouble(args[BATCH + (i)])

static int batch(const char *name, PyObject *const *args, Py_ssize_t given, Py_ssize_t own, Job *job) {
    if (!arguments(name, given, BATCH + own + 1)) return 0;
    job->z = POINTER(const float *, 0), job->rows = NUMBER(1), job->cols = job->nodes = NUMBER(2);
    job->loss = POINTER(float *, 3), job->summed = (int)NUMBER(4), job->grad = POINTER(float *, 5);
    job->target = POINTER(const int64_t *, 6), job->ignore = NUMBER(7), job->weight = POINTER(const double *, 8);
    job->reduction = (int)NUMBER(9), job->labels = NUMBER(10);
    return 1;
}

/* The table's rows come first in losses that have one. */
static void table(PyObject *const *args, Job *job) {
    job->start = INTEGERS(0), job->node = INTEGERS(1), job->value = DOUBLES(2);
}

static PyObject *path_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Job job = {0};
    if (!batch("path_loss", args, count, 7, &job)) return NULL;
    table(args, &job);
    job.low = INTEGERS(3), job.high = INTEGERS(4), job.column = SHORTS(5), job.branch = SHORTS(6);
    int64_t threads = NUMBER(BATCH + 7);
    return PyErr_Occurred() ? NULL : finish(&job, &level->path, threads);
}

static PyObject *outside_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Job job = {0};
    if (!batch("outside_loss", args, count, 5, &job)) return NULL;
    job.start = INTEGERS(0), job.node = INTEGERS(1), job.ends = INTEGERS(2), job.level = SHORTS(3), job.strength = SCALAR(4);
    int64_t threads = NUMBER(BATCH + 5);
    return PyErr_Occurred() ? NULL : finish(&job, &level->outside, threads);
}

static PyObject *path_sum_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Job job = {.centred = 1};
    if (!batch("path_sum_loss", args, count, 11, &job)) return NULL;
    table(args, &job);
    job.low = INTEGERS(3), job.high = INTEGERS(4), job.level = SHORTS(5), job.ends = INTEGERS(6), job.parent = INTEGERS(7);
    job.places = POINTER(const Place *, BATCH + 8), job.cols = job.classes = (int64_t)SCALAR(9), job.sharing = SCALAR(10);
    int64_t threads = NUMBER(BATCH + 11);
    return PyErr_Occurred() ? NULL : finish_tree(&job, &grouped_level(&job, job.nodes)->path_sums, threads);
}

static PyObject *dense_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Job job = {0};
    if (!batch("dense_loss", args, count, 8, &job)) return NULL;
    table(args, &job);
    job.dense = POINTER(const float *, BATCH + 3), job.parent = INTEGERS(4), job.level = SHORTS(5);
    job.places = POINTER(const Place *, BATCH + 6), job.dense_stride = (int64_t)SCALAR(7);
    int64_t threads = NUMBER(BATCH + 8);
    return PyErr_Occurred() ? NULL : finish_tree(&job, &grouped_level(&job, 0)->dense, threads);
}

static PyObject *dag_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Job job = {0};
    if (!batch("dag_loss", args, count, 7, &job)) return NULL;
    table(args, &job);
    job.dense = POINTER(const float *, BATCH + 3), job.first = INTEGERS(4), job.member = SHORTS(5);
    job.dense_stride = (int64_t)SCALAR(6);
    int64_t threads = NUMBER(BATCH + 7);
    return PyErr_Occurred() ? NULL : finish(&job, &grouped_level(&job, 3 * job.nodes)->dag, threads);
}

static PyObject *sibling_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Job job = {0};
    if (!batch("sibling_loss", args, count, 5, &job)) return NULL;
    job.node = INTEGERS(0), job.parent = INTEGERS(1), job.first = INTEGERS(2), job.member = SHORTS(3);
    job.rooted = (int)SCALAR(4);
    int64_t threads = NUMBER(BATCH + 5);
    return PyErr_Occurred() ? NULL : finish(&job, &level->siblings, threads);
}

static PyObject *lca_group_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    Job job = {0};
    if (!batch("lca_group_loss", args, count, 12, &job)) return NULL;
    job.start = INTEGERS(0), job.node = INTEGERS(1), job.low = INTEGERS(2), job.high = INTEGERS(3), job.column = SHORTS(4);
    job.own = DOUBLES(5), job.at = DOUBLES(6), job.leaf = DOUBLES(7), job.itself = INTEGERS(8);
    job.outside = SCALAR(9), job.kind = (int)SCALAR(10), job.strength = SCALAR(11);
    int64_t threads = NUMBER(BATCH + 12);
    return PyErr_Occurred() ? NULL : finish(&job, &level->lca_groups, threads);
}

static PyObject *node_log_probs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("node_log_probs", count, 9)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(3),
               .log_probs = POINTER(float *, 4), .parent = POINTER(const int64_t *, 5), .level = POINTER(const int32_t *, 6),
               .node = POINTER(const int64_t *, 7)};
    int64_t threads = NUMBER(8);
    if (PyErr_Occurred()) return NULL;
    return finish_tree(&job, &grouped_level(&job, 0)->dense, threads);
}

static PyObject *path_sums(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("path_sums", count, 10)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .out = POINTER(float *, 2), .nodes = NUMBER(3),
               .classes = NUMBER(4), .level = POINTER(const int32_t *, 5), .column = POINTER(const int32_t *, 6),
               .sharing = PyFloat_AsDouble(args[7]), .centred = (int)NUMBER(8) == 1};
    const int up = NUMBER(8) == 2;
    int64_t threads = NUMBER(9);
    if (PyErr_Occurred()) return NULL;
    job.cols = job.nodes;
    return finish(&job, up ? &level->up : &level->down, threads);
}

/* The places of a tree as bytes, for losses that are called again and again. */
static PyObject *tree_places(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("tree_places", count, 2)) return NULL;
    const int32_t *level = POINTER(const int32_t *, 0);
    const int64_t nodes = NUMBER(1);
    if (PyErr_Occurred()) return NULL;
    PyObject *made = PyByteArray_FromStringAndSize(NULL, PLACES(nodes) * (Py_ssize_t)sizeof(Place));
    if (made && !list_places(level, nodes, (Place *)PyByteArray_AsString(made))) {
        Py_DECREF(made);
        return PyErr_NoMemory();
    }
    return made;
}

/* What evaluation calls: answers, rankings, levels and walks, none of which has a gradient. */

static PyObject *best_answers(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("best_answers", count, 18)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .level = POINTER(const int32_t *, 3), .gain = POINTER(const double *, 4), .scale = POINTER(const double *, 5),
               .inside = POINTER(const double *, 6), .constant = POINTER(const double *, 7),
               .reach = POINTER(const double *, 8), .sample = POINTER(const double *, 9), .order = POINTER(const int64_t *, 10),
               .begin = PyFloat_AsDouble(args[11]), .factor = PyFloat_AsDouble(args[12]), .tie = PyFloat_AsDouble(args[13]),
               .answer = POINTER(int64_t *, 14), .answer_mass = POINTER(double *, 15), .worth = POINTER(double *, 16)};
    int64_t threads = NUMBER(17);
    if (PyErr_Occurred()) return NULL;
    return finish_tree(&job, &grouped_level(&job, job.nodes)->answers, threads);
}

static PyObject *best_columns(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("best_columns", count, 7)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .best = NUMBER(3),
               .answer = POINTER(int64_t *, 4), .top = POINTER(float *, 5)};
    int64_t threads = NUMBER(6);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, &level->best_columns, threads);
}

static PyObject *level_masses(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("level_masses", count, 9)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .level = POINTER(const int32_t *, 3), .best = NUMBER(4), .answer = POINTER(int64_t *, 5),
               .top = POINTER(float *, 6), .worth = POINTER(double *, 7)};
    int64_t threads = NUMBER(8);
    if (PyErr_Occurred()) return NULL;
    return finish_tree(&job, &grouped_level(&job, 0)->levels, threads);
}

static PyObject *walk_down(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("walk_down", count, 11)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .start = POINTER(const int64_t *, 3), .high = POINTER(const int64_t *, 4),
               .node = POINTER(const int64_t *, 5), .ignore = NUMBER(6), .best = NUMBER(7),
               .answer = POINTER(int64_t *, 8), .top = POINTER(float *, 9)};
    int64_t threads = NUMBER(10);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, &level->walk, threads);
}

static PyObject *spread(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("spread", count, 7)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2),
               .node = POINTER(const int64_t *, 3), .out = POINTER(float *, 4), .nodes = NUMBER(5)};
    int64_t threads = NUMBER(6);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, &level->spread, threads);
}

/* A copy of memory: labels, which the caller may write over before a second backward pass. */
static PyObject *copied(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("copied", count, 2)) return NULL;
    const char *from = POINTER(const char *, 0);
    const Py_ssize_t size = NUMBER(1);
    return PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(from, size);
}

/* The levels that this processor can run, the best first. */
static PyObject *level_names(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self, (void)args;
    if (!arguments("levels", count, 0)) return NULL;
    PyObject *names = PyList_New(0);
    for (int i = 0; names && levels[i]; i++) {
        PyObject *name = PyUnicode_FromString(levels[i]->name);
        if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

/* The level in use. */
static PyObject *level_name(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self, (void)args;
    return arguments("level", count, 0) ? PyUnicode_FromString(level->name) : NULL;
}

/* Uses a level by its place among them: tests compare them. */
static PyObject *use_level(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("use_level", count, 1)) return NULL;
    const int64_t i = NUMBER(0);
    if (PyErr_Occurred()) return NULL;
    for (int64_t j = 0; levels[j]; j++) {
        if (j != i) continue;
        level = levels[j];
        Py_RETURN_NONE;
    }
    PyErr_SetString(PyExc_ValueError, "no such level");
    return NULL;
}

static PyMethodDef methods[] = {
    {"path_loss", (PyCFunction)(void (*)(void))path_loss, METH_FASTCALL,
     "Losses (and gradients) of samples whose table row is on one path of a tree."},
    {"outside_loss", (PyCFunction)(void (*)(void))outside_loss, METH_FASTCALL,
     "The leave-one-out term (and gradient) of samples: what is outside of each branch that leads to the label."},
    {"path_sum_loss", (PyCFunction)(void (*)(void))path_sum_loss, METH_FASTCALL,
     "The same of path sums: losses over the classes, gradients of the outputs of all nodes."},
    {"dense_loss", (PyCFunction)(void (*)(void))dense_loss, METH_FASTCALL,
     "Losses (and gradients) of samples whose table row may touch every node of a tree."},
    {"sibling_loss", (PyCFunction)(void (*)(void))sibling_loss, METH_FASTCALL,
     "Losses (and gradients) of the conditional softmax among siblings."},
    {"lca_group_loss", (PyCFunction)(void (*)(void))lca_group_loss, METH_FASTCALL,
     "Losses (and gradients) of soft labels (0), expected similarity (1) or expected distance (2) over the classes."},
    {"dag_loss", (PyCFunction)(void (*)(void))dag_loss, METH_FASTCALL,
     "Losses (and gradients) of samples over a DAG."},
    {"node_log_probs", (PyCFunction)(void (*)(void))node_log_probs, METH_FASTCALL,
     "log q* of every node of a tree, from scores of the nodes, or of leaves at some of them."},
    {"best_answers", (PyCFunction)(void (*)(void))best_answers, METH_FASTCALL,
     "The answers of greatest expected worth on a tree."},
    {"best_columns", (PyCFunction)(void (*)(void))best_columns, METH_FASTCALL,
     "The best columns of each row, best first, equal ones in their order, and each row's largest score."},
    {"level_masses", (PyCFunction)(void (*)(void))level_masses, METH_FASTCALL,
     "Of every level the node of greatest mass, that mass, and the sum of squares."},
    {"walk_down", (PyCFunction)(void (*)(void))walk_down, METH_FASTCALL,
     "From the top always to the child of greatest mass: nodes and masses."},
    {"spread", (PyCFunction)(void (*)(void))spread, METH_FASTCALL,
     "Scores of the leaves at their nodes, -inf at inner ones."},
    {"path_sums", (PyCFunction)(void (*)(void))path_sums, METH_FASTCALL,
     "Sums of outputs along the path of every class: down (0), down and centred (1), or the transpose, up (2)."},
    {"tree_places", (PyCFunction)(void (*)(void))tree_places, METH_FASTCALL,
     "The places of a tree's inner nodes and leaves, as bytes."},
    {"copied", (PyCFunction)(void (*)(void))copied, METH_FASTCALL, "Bytes of memory, copied."},
    {"levels", (PyCFunction)(void (*)(void))level_names, METH_FASTCALL,
     "Names of the levels of vectors that this processor can run, the best first."},
    {"level", (PyCFunction)(void (*)(void))level_name, METH_FASTCALL, "Name of the level in use."},
    {"use_level", (PyCFunction)(void (*)(void))use_level, METH_FASTCALL, "Use a level, by its place among them."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", "Compiled losses over trees.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) {
    PyObject *made = PyModule_Create(&module);
    pthread_atfork(NULL, NULL, lose_team);
    list_levels();
    if (made) PyModule_AddIntConstant(made, "interface", 11); /* bump when functions or their arguments change */
    return made;
}
