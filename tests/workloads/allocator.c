/* An allocator that believes in zeros: fills memory, frees it, lets the allocator purge, and wants zeros from calloc.
 * The memory that was there at "ready" comes back wrong under jemalloc if MADV_DONTNEED shows old bytes. */
#include "zoo.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>

enum { THREADS = 3, MOST = 8000, ROUNDS = 5, BUDGET = 24 << 20 };

static const size_t sizes[] = {24, 100, 512, 2000, 4096, 9000, 40000, 100000, 131000, 200000, 600000, 1 << 20, 5 << 20};
static const size_t kinds = sizeof sizes / sizeof *sizes;

struct worker {
    int me;
    unsigned random;
    int count;
    unsigned char *blocks[MOST];
    size_t lengths[MOST];
    unsigned char pattern;
    size_t dirty;      /* bytes of calloc that were not zero */
    size_t corrupt;    /* blocks whose bytes changed */
};

static pthread_barrier_t barrier;

static void fill(struct worker *worker, unsigned char pattern, int zeroed) {
    size_t total = 0;
    worker->pattern = pattern;
    for (worker->count = 0; total < BUDGET && worker->count < MOST; worker->count++) {
        worker->random = worker->random * 1664525 + 1013904223;
        size_t length = sizes[(worker->random >> 8) % kinds];
        unsigned char *block = zeroed ? calloc(1, length) : malloc(length);
        NEED(block);
        if (zeroed)
            for (size_t i = 0; i < length; i++) worker->dirty += block[i] != 0;
        memset(block, pattern, length);
        worker->blocks[worker->count] = block;
        worker->lengths[worker->count] = length;
        total += length;
    }
}

/* Some blocks grow: realloc moves them with mremap where it can, and what is new may hold anything, but not lose the old. */
static void grow(struct worker *worker) {
    for (int i = 0; i < worker->count; i += 7) {
        size_t length = worker->lengths[i] * 3;
        unsigned char *block = realloc(worker->blocks[i], length);
        NEED(block);
        memset(block + worker->lengths[i], worker->pattern, length - worker->lengths[i]);
        worker->blocks[i] = block;
        worker->lengths[i] = length;
    }
}

static void verify(struct worker *worker) {
    for (int i = 0; i < worker->count; i++)
        for (size_t at = 0; worker->blocks[i] && at < worker->lengths[i]; at++)
            if (worker->blocks[i][at] != worker->pattern) {
                worker->corrupt++;
                break;
            }
}

static void release(struct worker *worker) {
    for (int i = 0; i < worker->count; i++) free(worker->blocks[i]);
    worker->count = 0;
}

/* Ask the allocator, whichever it is, to give memory back now. */
static const char *purge(void) {
#ifndef STATIC
    int (*jemalloc)(const char *, void *, size_t *, void *, size_t) = dlsym(RTLD_DEFAULT, "mallctl");
    void (*tcmalloc)(void) = dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
    void (*mimalloc)(int) = dlsym(RTLD_DEFAULT, "mi_collect");
    if (jemalloc) {
        CHECK(!jemalloc("arena.4096.purge", NULL, NULL, NULL, 0), "jemalloc does not purge");   /* all arenas */
        return "jemalloc";
    }
    if (tcmalloc) return tcmalloc(), "tcmalloc";
    if (mimalloc) return mimalloc(1), "mimalloc";
#endif
    malloc_trim(0);
    return "glibc";
}

static void purge_together(const struct worker *worker) {
    pthread_barrier_wait(&barrier);
    if (worker->me == 0) purge();
    pthread_barrier_wait(&barrier);
}

/* All threads live this life; thread 0 is main, and the one that purges. */
static void *live(void *argument) {
    struct worker *worker = argument;
    fill(worker, 0xA5, 0);
    pthread_barrier_wait(&barrier);
    if (worker->me == 0) zoo_ready();
    pthread_barrier_wait(&barrier);
    verify(worker);
    for (int round = 0; round < ROUNDS; round++) {
        release(worker);
        purge_together(worker);
        fill(worker, (unsigned char)(0x5A + round), 1);
        grow(worker);
        verify(worker);
        for (int i = 0; i < worker->count; i += 2) {              /* purge while the neighbours live */
            free(worker->blocks[i]);
            worker->blocks[i] = NULL;
        }
        purge_together(worker);
        verify(worker);
    }
    return NULL;
}

static struct worker workers[THREADS];

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    NEED(!pthread_barrier_init(&barrier, NULL, THREADS));
    for (int i = 0; i < THREADS; i++) workers[i] = (struct worker){.me = i, .random = 12345u + 77u * (unsigned)i};
    const char *found = purge(), *wanted = argc > 1 ? argv[1] : "glibc";
    if (strcmp(found, wanted)) {
        zoo_say("BAD preparing: the allocator is %s instead of %s", found, wanted);
        return 2;
    }
    for (int i = 1; i < THREADS; i++) NEED(!pthread_create(&threads[i], NULL, live, &workers[i]));
    live(&workers[0]);
    for (int i = 1; i < THREADS; i++) NEED(!pthread_join(threads[i], NULL));
    for (int i = 0; i < THREADS; i++) {
        CHECK(!workers[i].dirty, "calloc gave thread %d %zu bytes that are not zero", i, workers[i].dirty);
        CHECK(!workers[i].corrupt, "thread %d lost the content of %zu blocks", i, workers[i].corrupt);
    }
    return zoo_done();
}
