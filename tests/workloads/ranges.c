/* An address space with ranges of every kind: heap, guards, reservations, locked, executable, wiped on fork, hundreds. */
#include "zoo.h"
#include <setjmp.h>
#include <signal.h>

enum { PAGE = 4096, SIZE = 4 << 20, SCATTERED = 600 };

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

static sigjmp_buf escape;
static void on_fault(int number) { siglongjmp(escape, number); }

/* Does an access fault? */
static int faults(volatile unsigned char *where, int writing) {
    int number = sigsetjmp(escape, 1);
    if (number) return 1;
    unsigned char value = *where;
    if (writing) *where = value;
    return 0;
}

/* The lines of /proc/self/smaps about the range at `where`; read without malloc, which would move the break. */
static char *about(void *where) {
    static char text[4 << 20];
    size_t length = 0;
    int fd = open("/proc/self/smaps", O_RDONLY);
    for (ssize_t count; fd >= 0 && (count = read(fd, text + length, sizeof text - 1 - length)) > 0;) length += (size_t)count;
    close(fd);
    text[length] = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) next++;
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) != 2 || (unsigned long)where < start || (unsigned long)where >= end) continue;
        char *last = strstr(line, "\nVmFlags:");
        if (last && (last = strchr(last + 1, '\n'))) *last = 0;
        return line;
    }
    return "";
}

static int flagged(void *where, const char *flag) {
    char *flags = strstr(about(where), "VmFlags:");
    return flags && strstr(flags, flag);
}

static long resident(void *where) {
    char *line = strstr(about(where), "Rss:");
    return line ? atol(line + 4) : -1;
}

static unsigned char *scattered(int i) { return (unsigned char *)(0x300000000000ul + (unsigned long)i * 0x3000000); }

int main(void) {
    unsigned char deep[200 << 10];
    zoo_fill(deep, sizeof deep, 1);

    unsigned char *heap = sbrk(2 << 20);
    NEED(heap != (void *)-1);
    zoo_fill(heap, 2 << 20, 2);

    unsigned char *guarded = zoo_memory(SIZE, 3);
    NEED(!mprotect(guarded + SIZE / 2, PAGE, PROT_NONE) && !mprotect(guarded + SIZE - PAGE, PAGE, PROT_READ));

    /* a terabyte that may not be touched, 16 GiB without reserve of which two pages are used */
    unsigned char *reserved = zoo_map(NULL, 1ul << 40, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE);
    NEED(!mprotect(reserved + (5ul << 30), SIZE, PROT_READ | PROT_WRITE));
    zoo_fill(reserved + (5ul << 30), SIZE, 4);
    unsigned char *sparse = zoo_map(NULL, 16ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
    zoo_fill(sparse + (3ul << 30), PAGE, 5);
    zoo_fill(sparse + (15ul << 30), PAGE, 6);

    /* every other page used; zeros that were written; only zeros */
    unsigned char *holes = zoo_map(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    for (size_t i = 0; i < SIZE; i += 2 * PAGE) zoo_fill(holes + i, PAGE, 7);
    unsigned char *zeros = zoo_map(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    memset(zeros, 0, SIZE);

    unsigned char *locked = zoo_memory(16 * PAGE, 8);
    NEED(!mlock(locked, 16 * PAGE));
    unsigned char *forgotten = zoo_memory(SIZE, 9), *kept_from_children = zoo_memory(SIZE, 10), *huge = zoo_memory(SIZE, 11);
    NEED(!madvise(forgotten, SIZE, MADV_WIPEONFORK) && !madvise(kept_from_children, SIZE, MADV_DONTFORK));
    int huge_advised = !madvise(huge, SIZE, MADV_HUGEPAGE);
    unsigned char *no_dump = zoo_memory(PAGE, 12);
    NEED(!madvise(no_dump, PAGE, MADV_DONTDUMP));
    unsigned char *read_only = zoo_memory(SIZE, 13);
    NEED(!mprotect(read_only, SIZE, PROT_READ));
    unsigned char *down = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0);
    NEED(down != MAP_FAILED);
    zoo_fill(down, SIZE, 14);

    /* code that was made at run time: in a range that only runs, and in one that may be written as well */
#if defined __x86_64__
    static const unsigned char code[] = {0xB8, 0x2A, 0x05, 0x00, 0x00, 0xC3};         /* mov eax, 1322; ret */
#elif defined __aarch64__
    static const unsigned char code[] = {0x40, 0xA5, 0x80, 0x52, 0xC0, 0x03, 0x5F, 0xD6}; /* mov w0, 1322; ret */
#endif
    unsigned char *runs = zoo_memory(PAGE, 15), *changes = zoo_map(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE);
    memcpy(runs, code, sizeof code);
    memcpy(changes, code, sizeof code);
    __builtin___clear_cache((char *)runs, (char *)runs + sizeof code);
    __builtin___clear_cache((char *)changes, (char *)changes + sizeof code);
    NEED(!mprotect(runs, PAGE, PROT_READ | PROT_EXEC) && ((int (*)(void))runs)() == 1322 && ((int (*)(void))changes)() == 1322);

    /* guard pages, where the kernel has them */
    unsigned char *poisoned = zoo_memory(8 * PAGE, 16);
    int poison = !madvise(poisoned + 3 * PAGE, PAGE, MADV_GUARD_INSTALL);

    /* ranges that no one can coalesce, and neighbours with different protections */
    for (int i = 0; i < SCATTERED; i++) zoo_fill(zoo_map(scattered(i), 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE), 2 * PAGE, 1000 + i);
    unsigned char *striped = zoo_memory(64 * PAGE, 17);
    for (int i = 0; i < 64; i += 2) NEED(!mprotect(striped + i * PAGE, PAGE, PROT_READ));

    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    NEED(!sigaction(SIGSEGV, &action, NULL) && !sigaction(SIGBUS, &action, NULL));
    NEED(faults(guarded + SIZE / 2, 0) && faults(reserved, 0) && faults(read_only, 1) && !faults(read_only, 0));
    long sparse_resident = resident(sparse);

    zoo_ready();

    zoo_verify("stack", deep, sizeof deep, 1);
    zoo_verify("heap", heap, 2 << 20, 2);
    CHECK(sbrk(0) >= (void *)(heap + (2 << 20)), "the break is at %p", sbrk(0));
    void *brk_end = sbrk(0);
    CHECK(!brk(heap + (1 << 20)) && faults(heap + (1 << 20) + PAGE, 0), "the break goes down");
    CHECK(!brk(brk_end), "the break goes up again");
    zoo_verify_value("heap after the break went down and up", heap + (1 << 20), 1 << 20, 0);
    zoo_verify("heap below", heap, 1 << 20, 2);

    zoo_verify("below the guard", guarded, SIZE / 2, 3);
    CHECK(faults(guarded + SIZE / 2, 0), "the guard page can be read");
    CHECK(!faults(guarded + SIZE - PAGE, 0) && faults(guarded + SIZE - PAGE, 1), "the read-only page");
    CHECK(!mprotect(guarded + SIZE / 2, PAGE, PROT_READ), "the guard page opens");
    zoo_verify("with the guard open", guarded, SIZE, 3);
    CHECK(faults(reserved, 0) && faults(reserved + (1ul << 40) - PAGE, 0), "the reservation can be touched");
    zoo_verify("committed part of the reservation", reserved + (5ul << 30), SIZE, 4);
    CHECK(!mprotect(reserved + (6ul << 30), SIZE, PROT_READ | PROT_WRITE), "another part of the reservation");
    zoo_verify_value("fresh part of the reservation", reserved + (6ul << 30), SIZE, 0);
    zoo_verify("sparse", sparse + (3ul << 30), PAGE, 5);
    zoo_verify("sparse", sparse + (15ul << 30), PAGE, 6);
    CHECK(resident(sparse) <= sparse_resident + 256, "the sparse range holds %ld KiB instead of %ld", resident(sparse), sparse_resident);
    zoo_verify_value("sparse, hole", sparse + (8ul << 30), SIZE, 0);
    for (size_t i = 0; i < SIZE; i += 2 * PAGE) {
        if (zoo_verify("used page", holes + i, PAGE, 7) || zoo_verify_value("page between", holes + i + PAGE, PAGE, 0)) break;
    }
    zoo_verify_value("zeros", zeros, SIZE, 0);
    memset(zeros, 1, SIZE);

    zoo_verify("locked", locked, 16 * PAGE, 8);
    CHECK(flagged(locked, " lo"), "it is not locked any more");
    zoo_verify("wiped on fork", forgotten, SIZE, 9);
    zoo_verify("kept from children", kept_from_children, SIZE, 10);
    pid_t child = fork();
    if (!child) {
        zoo_verify_value("wiped on fork, in a child", forgotten, SIZE, 0);
        CHECK(faults(kept_from_children, 0), "a child sees what was kept from children");
        zoo_verify("heap of a child", heap, 1 << 20, 2);
        _exit(zoo_differences ? 1 : 0);
    }
    CHECK(zoo_wait(child) == 0, "a child");
    zoo_verify("advised huge", huge, SIZE, 11);
    if (huge_advised) CHECK(flagged(huge, " hg"), "the advice is lost");
    zoo_verify("not dumped", no_dump, PAGE, 12);
    CHECK(flagged(no_dump, " dd"), "the advice is lost");
    zoo_verify("read-only", read_only, SIZE, 13);
    CHECK(faults(read_only, 1), "read-only memory can be written");
    CHECK(!mprotect(read_only, SIZE, PROT_READ | PROT_WRITE) && !faults(read_only, 1), "read-only memory becomes writable");
    zoo_verify("growing down", down, SIZE, 14);
    CHECK(flagged(down, " gd"), "it does not grow down any more");

    CHECK(((int (*)(void))runs)() == 1322 && faults(runs, 1), "code");
    CHECK(((int (*)(void))changes)() == 1322, "code that may change");
    changes[1 + (sizeof code == 8)]++;
    unsigned char *fresh = zoo_memory(PAGE, 18);
    memcpy(fresh, code, sizeof code);
    CHECK(!mprotect(fresh, PAGE, PROT_READ | PROT_EXEC) && ((int (*)(void))fresh)() == 1322, "fresh code");
    CHECK(!mprotect(huge, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC), "old memory becomes executable: %s", strerror(errno));
    memcpy(huge, code, sizeof code);
    __builtin___clear_cache((char *)huge, (char *)huge + sizeof code);
    CHECK(((int (*)(void))huge)() == 1322, "code in old memory");

    zoo_verify("below the poison", poisoned, 3 * PAGE, 16);
    if (poison) {
        CHECK(faults(poisoned + 3 * PAGE, 0), "the poisoned page can be read");
        CHECK(!madvise(poisoned + 3 * PAGE, PAGE, MADV_GUARD_REMOVE), "%s", strerror(errno));
        zoo_verify_value("where the poison was", poisoned + 3 * PAGE, PAGE, 0);
    }
    for (int i = 0; i < SCATTERED; i++)
        if (zoo_verify("scattered range", scattered(i), 2 * PAGE, 1000 + i)) break;
    zoo_verify("striped", striped, 64 * PAGE, 17);
    for (int i = 0; i < 64; i++) CHECK(faults(striped + i * PAGE, 1) == !(i & 1), "stripe %d", i);
    return zoo_done();
}
