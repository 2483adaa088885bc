/* What every workload shares: the protocol with the test, and checks that name what they found.
 *
 * A workload prepares state, says "ready" on its standard output, waits until a file named "go" appears in its working
 * directory, checks its state, says "BAD <what>" for each difference, at the end "OK" if there was none, and exits 0 or 1.
 */
#ifndef ZOO_H
#define ZOO_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int zoo_differences;

/* One whole line in one write: lines of several processes do not mix. */
static inline void zoo_say(const char *format, ...) {
    char line[512];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    if (write(1, line, length) != length) _exit(3);
}

#define BAD(format, ...) (__atomic_add_fetch(&zoo_differences, 1, __ATOMIC_SEQ_CST), zoo_say("BAD " format, ##__VA_ARGS__))

/* A difference found after "ready". */
#define CHECK(condition, format, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition)) BAD("%s: " format, #condition, ##__VA_ARGS__);                                               \
    } while (0)

/* State that cannot even be prepared: the workload says so and is no workload. */
#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            zoo_say("BAD preparing: %s:%d %s: %s", __FILE__, __LINE__, #condition, strerror(errno));                   \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)

static inline void zoo_nap(long milliseconds) {
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR) continue;
}

static inline void zoo_await_go(void) {
    while (access("go", F_OK)) zoo_nap(20);
}

static inline void zoo_ready(void) {
    zoo_say("ready");
    zoo_await_go();
}

static inline int zoo_done(void) {
    if (!zoo_differences) zoo_say("OK");
    return zoo_differences ? 1 : 0;
}

/* A pattern in which no two places within 64 KiB of each other, and no two seeds, look alike. */
static inline unsigned char zoo_byte(uint64_t seed, size_t place) {
    uint64_t x = (seed + 1) * 0x9E3779B97F4A7C15u + place * 0xD1B54A32D192ED03u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    return (unsigned char)(x >> 56);
}

static inline void zoo_fill(void *start, size_t length, uint64_t seed) {
    unsigned char *bytes = start;
    for (size_t i = 0; i < length; i++) bytes[i] = zoo_byte(seed, i);
}

/* Number of wrong bytes, after naming the first. */
static inline size_t zoo_verify(const char *what, const void *start, size_t length, uint64_t seed) {
    const unsigned char *bytes = start;
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != zoo_byte(seed, i) && !wrong++) first = i;
    if (wrong)
        BAD("%s: %zu of %zu bytes, first at %zu: %02x instead of %02x", what, wrong, length, first, bytes[first],
            zoo_byte(seed, first));
    return wrong;
}

static inline size_t zoo_verify_value(const char *what, const void *start, size_t length, unsigned char value) {
    const unsigned char *bytes = start;
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != value && !wrong++) first = i;
    if (wrong)
        BAD("%s: %zu of %zu bytes, first at %zu: %02x instead of %02x", what, wrong, length, first, bytes[first], value);
    return wrong;
}

static inline void *zoo_map(void *where, size_t length, int protection, int flags) {
    void *area = mmap(where, length, protection, flags | MAP_ANONYMOUS | (where ? MAP_FIXED_NOREPLACE : 0), -1, 0);
    NEED(area != MAP_FAILED);
    return area;
}

/* Anonymous private memory that holds a pattern. */
static inline unsigned char *zoo_memory(size_t length, uint64_t seed) {
    unsigned char *area = zoo_map(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    zoo_fill(area, length, seed);
    return area;
}

/* Exit code of a child, or -1. */
static inline int zoo_wait(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
}

#endif
