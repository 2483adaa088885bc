/* Threads: each with thread-local storage, a stack, a name, a signal mask, waiting in its own way. */
#include "zoo.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

enum { THREADS = 12, DEPTH = 64 << 10 };

static __thread unsigned char local[16384];
static __thread uint64_t counter = 7;
static __thread int identity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t robust;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t readers = PTHREAD_RWLOCK_INITIALIZER;
static pthread_key_t key;
static volatile int prepared, released, held;
static pid_t ids[THREADS];
static uint64_t destroyed;

static void destroy(void *value) { __atomic_add_fetch(&destroyed, (uint64_t)(uintptr_t)value, __ATOMIC_SEQ_CST); }

static void *run(void *argument) {
    int me = (int)(intptr_t)argument;
    unsigned char stack[DEPTH];
    char name[16], found[16];
    sigset_t mask, now;
    cpu_set_t cpus;

    identity = me;
    zoo_fill(local, sizeof local, me);
    zoo_fill(stack, sizeof stack, 50 + me);
    for (int i = 0; i < me * 1000; i++) counter++;
    snprintf(name, sizeof name, "member-%d", me);
    NEED(!pthread_setname_np(pthread_self(), name));
    NEED(!pthread_setspecific(key, (void *)(uintptr_t)(me + 1)));
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN + me);
    NEED(!pthread_sigmask(SIG_SETMASK, &mask, NULL));
    NEED(!sched_getaffinity(0, sizeof cpus, &cpus));
    ids[me] = (pid_t)syscall(SYS_gettid);
    uintptr_t self = (uintptr_t)pthread_self();
    int *error = &errno;
    *error = 1000 + me;

    if (me == 1) NEED(!pthread_mutex_lock(&robust));
    if (me == 2) NEED(!pthread_rwlock_rdlock(&readers));
    __atomic_add_fetch(&prepared, 1, __ATOMIC_SEQ_CST);
    if (me == 1 || me == 2) __atomic_add_fetch(&held, 1, __ATOMIC_SEQ_CST);

    if (me % 3 == 0) {                                             /* a third waits on a condition */
        pthread_mutex_lock(&lock);
        while (!released) pthread_cond_wait(&condition, &lock);
        pthread_mutex_unlock(&lock);
    } else if (me % 3 == 1) {                                      /* a third sleeps */
        while (!released) zoo_nap(20);
    } else {                                                       /* a third computes a little */
        for (volatile int i = 0; !released;) {
            for (i = 0; i < 1000; i++) continue;
            zoo_nap(5);
        }
    }
    CHECK(identity == me, "thread %d", me);
    CHECK(counter == 7 + (uint64_t)me * 1000, "thread %d has %llu", me, (unsigned long long)counter);
    CHECK((uintptr_t)pthread_self() == self, "thread %d", me);
    CHECK(syscall(SYS_gettid) == ids[me], "thread %d has id %ld instead of %d", me, syscall(SYS_gettid), ids[me]);
    zoo_verify("thread-local storage", local, sizeof local, me);
    zoo_verify("stack", stack, sizeof stack, 50 + me);
    CHECK(!pthread_getname_np(pthread_self(), found, sizeof found) && !strcmp(found, name), "thread %d is %s", me, found);
    CHECK(pthread_getspecific(key) == (void *)(uintptr_t)(me + 1), "thread %d", me);
    CHECK(!pthread_sigmask(SIG_SETMASK, NULL, &now), "thread %d", me);
    for (int i = 0; i < THREADS; i++)
        CHECK(sigismember(&now, SIGRTMIN + i) == (i == me), "thread %d, signal %d", me, i);
    cpu_set_t after;
    CHECK(!sched_getaffinity(0, sizeof after, &after) && CPU_EQUAL(&cpus, &after), "thread %d's CPUs changed", me);
    for (int i = 0; i < 50; i++) {                                 /* the kernel keeps writing the CPU number (rseq) */
        unsigned cpu = 0;
        int before = sched_getcpu();
        syscall(SYS_getcpu, &cpu, NULL, NULL);
        if (before == (int)cpu && sched_getcpu() == (int)cpu) break;
        CHECK(i < 49, "thread %d: sched_getcpu says %d, the kernel %u", me, sched_getcpu(), cpu);
        sched_yield();
    }
    if (me == 2) CHECK(!pthread_rwlock_unlock(&readers), "read lock");
    return (void *)(intptr_t)(me * 3);                             /* thread 1 ends with the robust mutex held */
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_mutexattr_t attributes;
    NEED(!pthread_key_create(&key, destroy));
    NEED(!pthread_mutexattr_init(&attributes) && !pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST));
    NEED(!pthread_mutex_init(&robust, &attributes));
    zoo_fill(local, sizeof local, 900);
    for (int i = 0; i < THREADS; i++) NEED(!pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i));
    while (prepared < THREADS) zoo_nap(2);
    NEED(held == 2 && pthread_mutex_trylock(&robust) == EBUSY && pthread_rwlock_trywrlock(&readers) == EBUSY);

    zoo_ready();
    CHECK(pthread_mutex_trylock(&robust) == EBUSY, "the mutex is not held any more");
    CHECK(pthread_rwlock_trywrlock(&readers) == EBUSY, "the read lock is not held any more");
    zoo_verify("main's thread-local storage", local, sizeof local, 900);
    pthread_mutex_lock(&lock);
    released = 1;
    pthread_cond_broadcast(&condition);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        CHECK(!pthread_join(threads[i], &result) && result == (void *)(intptr_t)(i * 3), "thread %d", i);
    }
    CHECK(destroyed == THREADS * (THREADS + 1) / 2, "destructors saw %llu", (unsigned long long)destroyed);
    CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD, "a robust mutex whose owner died");
    CHECK(!pthread_mutex_consistent(&robust) && !pthread_mutex_unlock(&robust), "robust mutex");
    CHECK(!pthread_rwlock_trywrlock(&readers) && !pthread_rwlock_unlock(&readers), "write lock");
    pthread_t later;                                               /* threads can be made and end as before */
    released = 1;
    for (int round = 0; round < 20; round++) {
        CHECK(!pthread_create(&later, NULL, run, (void *)(intptr_t)5), "round %d", round);
        CHECK(!pthread_join(later, NULL), "round %d", round);
    }
    return zoo_done();
}
