/* The compiled accelerator of hace: losses and aggregation over trees, float32, on the CPU.

   It computes what hace/losses/numerics.py computes and is held by the same tests. Plain C, no torch headers: Python passes
   the addresses of contiguous buffers and keeps them alive. The interpreter lock is released while it works.

   Each header is one idea: `path.h` the label's path, `groups.h` eight samples side by side, `sums.h` path sums, `nodes.h`
   targets at all nodes, `siblings.h` conditional softmax, `rings.h` distances, `dag.h` DAGs, `answers.h` the best
   answers of decisions, `ranks.h` the best columns, `levels.h` the best of each level, `walks.h` the way down; how Python
   calls the last four is in `answer_calls.h`. `threads.h` says who works on which rows.

   Two ideas carry the losses over trees.
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

#include "vectors.h"
#include "job.h"
#include "path.h"
#include "groups.h"
#include "path_sums.h"
#include "sums.h"
#include "nodes.h"
#include "siblings.h"
#include "rings.h"
#include "dag.h"
#include "answers.h"
#include "ranks.h"
#include "levels.h"
#include "walks.h"
#include "threads.h"

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

static PyObject *finish(Job *job, Work work, int64_t threads) {
    int64_t bad = check_targets(job);
    if (bad >= 0) return PyLong_FromLongLong(bad);
    float *sum = job->summed ? job->loss : NULL;
    if (sum && !(job->loss = malloc((size_t)job->rows * sizeof(float)))) return PyErr_NoMemory();
    int done;
    Py_BEGIN_ALLOW_THREADS
    done = run(job, work, threads);
    Py_END_ALLOW_THREADS
    if (sum) {
        *sum = (float)total_of(job->loss, job->rows);
        free(job->loss);
    }
    return done ? PyLong_FromLong(-1) : PyErr_NoMemory();
}

/* A job over a tree whose places the caller may not have listed. */
static PyObject *finish_tree(Job *job, Work work, int64_t threads) {
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

static PyObject *path_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("path_loss", count, 19)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .loss = POINTER(float *, 3), .summed = (int)NUMBER(4),
               .grad = POINTER(float *, 5), .target = POINTER(const int64_t *, 6), .ignore = NUMBER(7),
               .weight = POINTER(const double *, 8), .reduction = (int)NUMBER(9), .labels = NUMBER(10),
               .start = POINTER(const int64_t *, 11), .node = POINTER(const int64_t *, 12),
               .value = POINTER(const double *, 13), .low = POINTER(const int64_t *, 14),
               .high = POINTER(const int64_t *, 15), .column = POINTER(const int32_t *, 16),
               .branch = POINTER(const int32_t *, 17)};
    int64_t threads = NUMBER(18);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, path_rows, threads);
}

static PyObject *path_sum_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("path_sum_loss", count, 23)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .nodes = NUMBER(2), .loss = POINTER(float *, 3), .summed = (int)NUMBER(4),
               .grad = POINTER(float *, 5), .target = POINTER(const int64_t *, 6), .ignore = NUMBER(7),
               .weight = POINTER(const double *, 8), .reduction = (int)NUMBER(9), .labels = NUMBER(10),
               .start = POINTER(const int64_t *, 11), .node = POINTER(const int64_t *, 12),
               .value = POINTER(const double *, 13), .low = POINTER(const int64_t *, 14),
               .high = POINTER(const int64_t *, 15), .cols = NUMBER(16), .classes = NUMBER(16),
               .level = POINTER(const int32_t *, 17), .ends = POINTER(const int64_t *, 18),
               .parent = POINTER(const int64_t *, 19), .sharing = PyFloat_AsDouble(args[20]), .centred = 1,
               .places = POINTER(const Place *, 21)};
    int64_t threads = NUMBER(22);
    if (PyErr_Occurred()) return NULL;
    return finish_tree(&job, sum_rows, threads);
}

static PyObject *dense_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("dense_loss", count, 20)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .loss = POINTER(float *, 3), .summed = (int)NUMBER(4), .grad = POINTER(float *, 5), .target = POINTER(const int64_t *, 6),
               .ignore = NUMBER(7), .weight = POINTER(const double *, 8), .reduction = (int)NUMBER(9),
               .labels = NUMBER(10), .start = POINTER(const int64_t *, 11), .node = POINTER(const int64_t *, 12),
               .value = POINTER(const double *, 13), .parent = POINTER(const int64_t *, 14),
               .level = POINTER(const int32_t *, 15), .dense = POINTER(const float *, 16), .dense_stride = NUMBER(17),
               .places = POINTER(const Place *, 18)};
    int64_t threads = NUMBER(19);
    if (PyErr_Occurred()) return NULL;
    return finish_tree(&job, dense_rows, threads);
}

static PyObject *sibling_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("sibling_loss", count, 17)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .loss = POINTER(float *, 3), .summed = (int)NUMBER(4), .grad = POINTER(float *, 5),
               .target = POINTER(const int64_t *, 6), .ignore = NUMBER(7), .weight = POINTER(const double *, 8),
               .reduction = (int)NUMBER(9), .labels = NUMBER(10), .node = POINTER(const int64_t *, 11),
               .parent = POINTER(const int64_t *, 12), .first = POINTER(const int64_t *, 13),
               .member = POINTER(const int32_t *, 14), .rooted = (int)NUMBER(15)};
    int64_t threads = NUMBER(16);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, sibling_rows, threads);
}

static PyObject *ring_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("ring_loss", count, 24)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .loss = POINTER(float *, 3),
               .summed = (int)NUMBER(4), .grad = POINTER(float *, 5), .target = POINTER(const int64_t *, 6),
               .ignore = NUMBER(7), .weight = POINTER(const double *, 8), .reduction = (int)NUMBER(9),
               .labels = NUMBER(10), .start = POINTER(const int64_t *, 11), .node = POINTER(const int64_t *, 12),
               .low = POINTER(const int64_t *, 13), .high = POINTER(const int64_t *, 14),
               .column = POINTER(const int32_t *, 15), .own = POINTER(const double *, 16),
               .at = POINTER(const double *, 17), .leaf = POINTER(const double *, 18),
               .itself = POINTER(const int64_t *, 19), .outside = PyFloat_AsDouble(args[20]), .kind = (int)NUMBER(21),
               .strength = PyFloat_AsDouble(args[22])};
    int64_t threads = NUMBER(23);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, ring_rows, threads);
}

static PyObject *dag_loss(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("dag_loss", count, 19)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .loss = POINTER(float *, 3), .summed = (int)NUMBER(4), .grad = POINTER(float *, 5),
               .target = POINTER(const int64_t *, 6), .ignore = NUMBER(7), .weight = POINTER(const double *, 8),
               .reduction = (int)NUMBER(9), .labels = NUMBER(10), .start = POINTER(const int64_t *, 11),
               .node = POINTER(const int64_t *, 12), .value = POINTER(const double *, 13),
               .first = POINTER(const int64_t *, 14), .member = POINTER(const int32_t *, 15),
               .dense = POINTER(const float *, 16), .dense_stride = NUMBER(17)};
    int64_t threads = NUMBER(18);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, dag_rows, threads);
}

static PyObject *node_log_probs(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("node_log_probs", count, 7)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .log_probs = POINTER(float *, 3), .parent = POINTER(const int64_t *, 4), .level = POINTER(const int32_t *, 5)};
    int64_t threads = NUMBER(6);
    if (PyErr_Occurred()) return NULL;
    return finish_tree(&job, dense_rows, threads);
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
    return finish(&job, up ? up_rows : down_rows, threads);
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

#include "answer_calls.h"

/* A copy of memory: labels, which the caller may write over before a second backward pass. */
static PyObject *copied(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("copied", count, 2)) return NULL;
    const char *from = POINTER(const char *, 0);
    const Py_ssize_t size = NUMBER(1);
    return PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(from, size);
}

/* Multiplies a gradient by an outer one, a scalar. */
static PyObject *multiply(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("multiply", count, 3)) return NULL;
    float *grad = POINTER(float *, 0);
    const int64_t size = NUMBER(1);
    const float *by = POINTER(const float *, 2);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (*by != 1.0f) scale_by(grad, size, *by);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"path_loss", (PyCFunction)(void (*)(void))path_loss, METH_FASTCALL,
     "Losses (and gradients) of samples whose table row is on one path of a tree."},
    {"path_sum_loss", (PyCFunction)(void (*)(void))path_sum_loss, METH_FASTCALL,
     "The same of path sums: losses over the classes, gradients of the outputs of all nodes."},
    {"dense_loss", (PyCFunction)(void (*)(void))dense_loss, METH_FASTCALL,
     "Losses (and gradients) of samples whose table row may touch every node of a tree."},
    {"sibling_loss", (PyCFunction)(void (*)(void))sibling_loss, METH_FASTCALL,
     "Losses (and gradients) of the conditional softmax among siblings."},
    {"ring_loss", (PyCFunction)(void (*)(void))ring_loss, METH_FASTCALL,
     "Losses (and gradients) of soft labels (0), expected similarity (1) or expected distance (2) over the classes."},
    {"dag_loss", (PyCFunction)(void (*)(void))dag_loss, METH_FASTCALL,
     "Losses (and gradients) of samples over a DAG."},
    {"node_log_probs", (PyCFunction)(void (*)(void))node_log_probs, METH_FASTCALL,
     "log q* of every node of a tree."},
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
    {"multiply", (PyCFunction)(void (*)(void))multiply, METH_FASTCALL, "A gradient times a scalar, in place."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", "Compiled losses over trees.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) {
    PyObject *made = PyModule_Create(&module);
    pthread_atfork(NULL, NULL, lose_team);
    if (made) PyModule_AddIntConstant(made, "interface", 8); /* bump when functions or their arguments change */
    return made;
}
