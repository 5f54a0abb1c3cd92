#include "nn/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "base/run.h"
#include "num/blas_core.h"

/* A worker that found no work spins briefly (sections follow each other within microseconds), then
 * sleeps on the condition variable. */
enum { SPIN = 2000 };

struct sd_pool {
    int threads; /* running workers + the caller */
    pthread_t *tid;
    pthread_mutex_t mutex;
    pthread_cond_t start, done;
    atomic_uint generation;
    atomic_size_t next;
    atomic_int busy;
    bool quit;
    /* the job: written before generation is raised, read after it was seen */
    size_t n;
    sd_pool_fn fn;
    void *ctx;
};

typedef struct worker_arg {
    sd_pool *pool;
    int id;
} worker_arg;

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void work(sd_pool *p, int id) {
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n || sd_cancelled())
            return;
        p->fn(p->ctx, i, id);
    }
}

static void *worker_main(void *arg) {
    worker_arg a = *(worker_arg *)arg;
    sd_pool *p = a.pool;
    sd_free(arg);
    unsigned seen = 0;
    for (;;) {
        unsigned g = seen;
        for (int s = 0; s < SPIN && g == seen; s++) {
            g = atomic_load_explicit(&p->generation, memory_order_acquire);
            relax();
        }
        if (g == seen) {
            pthread_mutex_lock(&p->mutex);
            while ((g = atomic_load_explicit(&p->generation, memory_order_acquire)) == seen)
                pthread_cond_wait(&p->start, &p->mutex);
            pthread_mutex_unlock(&p->mutex);
        }
        seen = g;
        if (p->quit)
            return NULL;
        work(p, a.id);
        if (atomic_fetch_sub_explicit(&p->busy, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&p->mutex);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->mutex);
        }
    }
}

sd_status sd_pool_new(int threads, sd_pool **out, sd_err *err) {
    *out = NULL;
    if (!sd_blas_core_linked) /* never: links the file that picks OpenBLAS's kernels */
        return sd_fail(err, SD_EINVAL, "BLAS is not set up");
    sd_pool *p = sd_alloc(1, sizeof *p, err);
    if (!p)
        return SD_ENOMEM;
    int want = threads > 1 ? threads - 1 : 0;
    p->tid = sd_alloc((size_t)want, sizeof *p->tid, err);
    if (!p->tid) {
        sd_free(p);
        return SD_ENOMEM;
    }
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->done, NULL);
    p->threads = 1;
    for (int i = 0; i < want; i++) {
        worker_arg *a = sd_alloc(1, sizeof *a, NULL);
        if (!a)
            break;
        *a = (worker_arg){p, i + 1};
        if (pthread_create(&p->tid[i], NULL, worker_main, a) != 0) {
            sd_free(a);
            break;
        }
        p->threads++;
    }
    *out = p;
    return SD_OK;
}

static void wake(sd_pool *p) {
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->mutex);
}

void sd_pool_free(sd_pool *p) {
    if (!p)
        return;
    p->quit = true;
    wake(p);
    for (int i = 0; i < p->threads - 1; i++)
        pthread_join(p->tid[i], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->start);
    pthread_mutex_destroy(&p->mutex);
    sd_free(p->tid);
    sd_free(p);
}

int sd_pool_threads(const sd_pool *p) {
    return p->threads;
}

void sd_pool_run(sd_pool *p, size_t n, sd_pool_fn fn, void *ctx) {
    p->n = n;
    p->fn = fn;
    p->ctx = ctx;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    if (p->threads == 1 || n < 2) {
        work(p, 0);
        return;
    }
    atomic_store_explicit(&p->busy, p->threads - 1, memory_order_relaxed);
    wake(p);
    work(p, 0);
    for (int s = 0; s < SPIN * 4; s++) {
        if (atomic_load_explicit(&p->busy, memory_order_acquire) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    while (atomic_load_explicit(&p->busy, memory_order_acquire) != 0)
        pthread_cond_wait(&p->done, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}
