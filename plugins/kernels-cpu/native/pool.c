/* Kernels on the threads that torch has already, so that no two sets of threads are in each other's way.
 *
 * A kernel is one parallel region, and within it chunks are taken while there are some. So a thread that comes late, because
 * it slept or because the system let another process run, costs nothing but its help: what waits, waits for chunks that were
 * taken. Who waits leaves its processor after a while, since the thread that it waits for may need that very one.
 *
 * A region ends with its last thread, though, and where other processes compute, Linux may put that thread where the caller
 * is: then each keeps the other from its processor. So after a region that lost time short ones have one thread for a while. */
#define _GNU_SOURCE
#include "pool.h"

#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#define INDEX_BITS 24
#define INDEX_MASK ((1u << INDEX_BITS) - 1)
#define MOST_CHUNKS (1 << 20)  /* threads look behind the last one */
#define PATIENCE_NS 200000
#define NAP_NS 50000
#define ALONE_NS 80000         /* waking a thread takes as long as some of it */
#define CROWDED_ALONE_NS 300000
#define LOST_NS 200000
#define CROWDED_NS 25000000    /* doubles each time that the next region loses time as well */
#define MOST_CROWDED_NS 400000000

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#else
#define RELAX() atomic_signal_fence(memory_order_seq_cst)
#endif

typedef void (*team)(void (*member)(void *), void *data, unsigned threads, unsigned flags);

/* One call of a kernel. `ticket`: which of its shared jobs this is, how many chunks that has, the next one; all in one word,
 * so that who takes a chunk knows whether it is one. */
typedef struct {
    void (*body)(const void *context);
    const void *context;
    _Atomic uint64_t ticket;
    _Atomic int64_t done;
    _Atomic int is_over;
    uint64_t number;
    tenonry_work work;
    const void *work_context;
    int64_t caller_ns; /* of a processor, for the caller's part */
} region;

static team run_team;           /* GOMP_parallel of the library that torch uses; NULL: there is one thread */
static _Thread_local region *current; /* of the thread that called the kernel */

void tenonry_kernels_team(void *found) { run_team = (team)found; }

static int64_t index_of(uint64_t word) { return (int64_t)(word & INDEX_MASK); }
static int64_t count_of(uint64_t word) { return (int64_t)((word >> INDEX_BITS) & INDEX_MASK); }
static int has_chunk(uint64_t word) { return index_of(word) < count_of(word); }

static int64_t read_ns(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static int64_t now_ns(void) { return read_ns(CLOCK_MONOTONIC); }

/* Turn number `turn` of a loop that waits since `since`, 0 at first. */
static void wait_a_little(int64_t turn, int64_t *since) {
    RELAX();
    if (turn % 64) return;
    int64_t now = now_ns();
    if (!*since) *since = now;
    if (now - *since < PATIENCE_NS) return;
    struct timespec nap = {0, NAP_NS};
    nanosleep(&nap, NULL);
}

/* Whether a chunk was taken and computed. */
static int take(region *all) {
    if (!has_chunk(atomic_load_explicit(&all->ticket, memory_order_acquire))) return 0;
    uint64_t word = atomic_fetch_add_explicit(&all->ticket, 1, memory_order_acq_rel);
    if (!has_chunk(word)) return 0;
    all->work(all->work_context, index_of(word));
    atomic_fetch_add_explicit(&all->done, 1, memory_order_release);
    return 1;
}

static void member(void *data) {
    region *all = data;
    if (current == all) {
        int64_t before = read_ns(CLOCK_THREAD_CPUTIME_ID);
        all->body(all->context);
        all->caller_ns = read_ns(CLOCK_THREAD_CPUTIME_ID) - before;
        atomic_store_explicit(&all->is_over, 1, memory_order_release);
        return;
    }
    int64_t since = 0;
    for (int64_t turn = 1; !atomic_load_explicit(&all->is_over, memory_order_acquire); turn++) {
        if (take(all))
            since = 0;
        else
            wait_a_little(turn, &since);
    }
}

/* Until when short regions have one thread, and for how long that was; 0: they have several. Threads that call kernels at
 * once share this, and an update that is lost costs one region. */
static _Atomic int64_t crowded_until, crowded_for;

/* `lost_ns`: the caller had to wait for so long, for a processor or for other threads. */
static void learn(int64_t lost_ns) {
    int64_t before = atomic_load_explicit(&crowded_for, memory_order_relaxed);
    int64_t next = before ? 2 * before : CROWDED_NS;
    if (lost_ns < LOST_NS)
        next = 0;
    else if (next > MOST_CROWDED_NS)
        next = MOST_CROWDED_NS;
    if (next == before && !next) return;
    atomic_store_explicit(&crowded_for, next, memory_order_relaxed);
    atomic_store_explicit(&crowded_until, now_ns() + next, memory_order_relaxed);
}

int64_t tenonry_threads_for(int64_t threads, int64_t work_ns) {
    if (work_ns < ALONE_NS) return 1;
    if (work_ns >= CROWDED_ALONE_NS || !atomic_load_explicit(&crowded_for, memory_order_relaxed)) return threads;
    return now_ns() < atomic_load_explicit(&crowded_until, memory_order_relaxed) ? 1 : threads;
}

void tenonry_together(int64_t threads, void (*body)(const void *context), const void *context) {
    if (threads <= 1 || !run_team) {
        body(context);
        return;
    }
    region all = {.body = body, .context = context};
    current = &all;
    int64_t before = now_ns();
    run_team(member, &all, (unsigned)threads, 0);
    current = NULL;
    learn(now_ns() - before - all.caller_ns);
}

void tenonry_share(tenonry_work work, const void *context, int64_t chunks) {
    region *all = current;
    if (!all || chunks <= 1 || chunks > MOST_CHUNKS) {
        for (int64_t i = 0; i < chunks; i++) work(context, i);
        return;
    }
    all->work = work;
    all->work_context = context;
    atomic_store_explicit(&all->done, 0, memory_order_relaxed);
    all->number++;
    uint64_t word = all->number << (2 * INDEX_BITS) | (uint64_t)chunks << INDEX_BITS;
    atomic_store_explicit(&all->ticket, word, memory_order_release);
    while (take(all)) continue;
    int64_t since = 0;
    for (int64_t turn = 1; atomic_load_explicit(&all->done, memory_order_acquire) < chunks; turn++)
        wait_a_little(turn, &since);
}
