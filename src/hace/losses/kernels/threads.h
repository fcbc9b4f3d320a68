/* Work on the rows of a batch, by one thread or several. */

typedef void (*Work)(Share *);

typedef struct {
    const Job *job;
    Work work;
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
        q->work(&share);
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
static int run(const Job *job, Work work, int64_t threads) {
    const int grouped = work == dense_rows || work == sum_rows || work == dag_rows || work == answer_rows ||
                        work == level_rows;
    Queue q = {.job = job, .work = work, .unit = grouped ? GROUP : 1};
    q.units = (job->rows + q.unit - 1) / q.unit;
    const int64_t most = job->rows * job->cols / MIN_WORK + 1;
    if (threads > most) threads = most;
    if (threads > q.units) threads = q.units;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    q.parts = threads > 1 ? threads * (grouped ? 2 : 4) : 1; /* each part of groups sets up its own tables */
    if (q.parts > q.units) q.parts = q.units;
    if (threads <= 1) take_parts(&q);
    else if (!run_in_team(&q, threads)) run_in_threads(&q, threads);
    return !q.failed;
}
