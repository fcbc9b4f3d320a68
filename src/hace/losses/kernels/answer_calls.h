/* What evaluation calls: answers, rankings, levels and walks, none of which has a gradient. */

static PyObject *best_answers(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("best_answers", count, 17)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .level = POINTER(const int32_t *, 3), .gain = POINTER(const double *, 4), .scale = POINTER(const double *, 5),
               .inside = POINTER(const double *, 6), .constant = POINTER(const double *, 7),
               .sample = POINTER(const double *, 8), .order = POINTER(const int64_t *, 9),
               .begin = PyFloat_AsDouble(args[10]), .factor = PyFloat_AsDouble(args[11]), .tie = PyFloat_AsDouble(args[12]),
               .answer = POINTER(int64_t *, 13), .answer_mass = POINTER(double *, 14), .worth = POINTER(double *, 15)};
    int64_t threads = NUMBER(16);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, answer_rows, threads);
}

static PyObject *best_columns(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("best_columns", count, 7)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .best = NUMBER(3),
               .answer = POINTER(int64_t *, 4), .top = POINTER(float *, 5)};
    int64_t threads = NUMBER(6);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, rank_rows, threads);
}

static PyObject *level_masses(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("level_masses", count, 9)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2), .nodes = NUMBER(2),
               .level = POINTER(const int32_t *, 3), .best = NUMBER(4), .answer = POINTER(int64_t *, 5),
               .top = POINTER(float *, 6), .worth = POINTER(double *, 7)};
    int64_t threads = NUMBER(8);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, level_rows, threads);
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
    return finish(&job, walk_rows, threads);
}

static PyObject *spread(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (!arguments("spread", count, 7)) return NULL;
    Job job = {.z = POINTER(const float *, 0), .rows = NUMBER(1), .cols = NUMBER(2),
               .node = POINTER(const int64_t *, 3), .out = POINTER(float *, 4), .nodes = NUMBER(5)};
    int64_t threads = NUMBER(6);
    if (PyErr_Occurred()) return NULL;
    return finish(&job, spread_rows, threads);
}
