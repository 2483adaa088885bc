/* What anonymous memory promises: after each call that drops, moves or grows it, zeros or the old bytes, never others.
 * EINVAL is a right answer everywhere (the kernel gives it for locked memory); wrong bytes are not. */
#include "zoo.h"

enum { PAGE = 4096, SIZE = 2 << 20 };

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#include <sys/syscall.h>

enum { AREAS = 26 };
static unsigned char *area[AREAS];
static int refused, done;

/* The call's result: 1 done, 0 refused. */
static int result(const char *what, long value) {
    if (value != -1) {
        done++;
        return 1;
    }
    CHECK(errno == EINVAL || errno == EPERM || errno == EACCES || errno == ENOSYS || errno == ENOMEM, "%s: %s", what, strerror(errno));
    refused++;
    return 0;
}

/* `dropped` bytes from `from` on are zeros if the call was done, all others (and all, if it was refused) are the old. */
static void expect(const char *what, const unsigned char *start, int seed, size_t from, size_t dropped, int was_done) {
    for (size_t i = 0; i < SIZE; i++) {
        unsigned char old = zoo_byte(seed, i), right = was_done && i >= from && i < from + dropped ? 0 : old;
        if (start[i] != right) {
            BAD("%s (%s): byte %zu is %02x instead of %02x", what, was_done ? "done" : "refused", i, start[i], right);
            return;
        }
    }
}

static void drop(const char *what, int n, int advice, size_t from, size_t length) {
    expect(what, area[n], n, from, length, result(what, madvise(area[n] + from, length, advice)));
    if (area[n][from]) return;
    area[n][from] = 0xAB;                                          /* and it can be written again */
    CHECK(area[n][from] == 0xAB && area[n][from + 1] == 0, "%s: after a write", what);
}

static void moved(const char *what, int n, void *got, size_t length) {
    if (!result(what, got == MAP_FAILED ? -1 : 0)) {
        zoo_verify(what, area[n], SIZE, n);
        return;
    }
    size_t old = length < SIZE ? length : SIZE;
    zoo_verify(what, got, old, n);
    if (length > SIZE) zoo_verify_value(what, (char *)got + SIZE, length - SIZE, 0);
    if (madvise(got, length, MADV_DONTNEED) == 0) zoo_verify_value("dropped after it was moved", got, length, 0);
    else zoo_verify(what, got, old, n);
}

int main(void) {
    for (int i = 0; i < AREAS; i++) {
        area[i] = zoo_map((void *)(0x200000000000ul + (unsigned long)i * (64ul << 30)), SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
        zoo_fill(area[i], SIZE, i);
    }
    NEED(!mlock(area[9], 4 * PAGE));
    unsigned char *reused = zoo_memory(SIZE, 40);

    zoo_ready();

    for (int i = 0; i < AREAS; i++) zoo_verify("before", area[i], SIZE, i);
    drop("DONTNEED of all", 0, MADV_DONTNEED, 0, SIZE);
    drop("DONTNEED of one page", 1, MADV_DONTNEED, 5 * PAGE, PAGE);
    drop("DONTNEED of the end", 2, MADV_DONTNEED, SIZE - PAGE, PAGE);
    drop("DONTNEED of an odd length", 3, MADV_DONTNEED, PAGE, 3 * PAGE);
    drop("DONTNEED_LOCKED", 4, MADV_DONTNEED_LOCKED, PAGE, 2 * PAGE);
    expect("MADV_REMOVE", area[5], 5, 0, SIZE, result("MADV_REMOVE", madvise(area[5], SIZE, MADV_REMOVE)));
    if (result("MADV_FREE", madvise(area[6], SIZE, MADV_FREE))) {
        for (size_t i = 0; i < SIZE; i++)                         /* old bytes or zeros, page by page */
            if (area[6][i] != zoo_byte(6, i) && area[6][i]) {
                BAD("MADV_FREE: byte %zu is %02x", i, area[6][i]);
                break;
            }
    } else zoo_verify("MADV_FREE", area[6], SIZE, 6);
    if (result("guard pages", madvise(area[7] + PAGE, 2 * PAGE, MADV_GUARD_INSTALL))) {
        CHECK(!madvise(area[7] + PAGE, 2 * PAGE, MADV_GUARD_REMOVE), "guard pages: %s", strerror(errno));
        expect("guard pages", area[7], 7, PAGE, 2 * PAGE, 1);
    } else expect("guard pages", area[7], 7, 0, 0, 0);
    struct iovec { void *start; size_t length; } vector = {area[8] + PAGE, 2 * PAGE};
    int self = (int)syscall(434, getpid(), 0);
    expect("process_madvise", area[8], 8, PAGE, 2 * PAGE, result("process_madvise", syscall(440, self, &vector, 1, MADV_DONTNEED, 0)));
    CHECK(madvise(area[9], PAGE, MADV_DONTNEED) == -1 && errno == EINVAL, "DONTNEED of locked memory");
    zoo_verify("locked", area[9], SIZE, 9);

    moved("mremap in place", 10, mremap(area[10], SIZE, 2 * SIZE, 0), 2 * SIZE);
    moved("mremap, moving", 11, mremap(area[11], SIZE, 5 * SIZE, MREMAP_MAYMOVE), 5 * SIZE);
    moved("mremap to a place", 12, mremap(area[12], SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, area[13]), SIZE);
    moved("mremap, shrinking", 14, mremap(area[14], SIZE, SIZE / 2, 0) == area[14] ? area[14] : MAP_FAILED, SIZE / 2);
    void *left = mremap(area[15], SIZE, SIZE, MREMAP_MAYMOVE | 4, NULL);              /* MREMAP_DONTUNMAP */
    if (result("mremap that leaves the old range", left == MAP_FAILED ? -1 : 0)) {
        zoo_verify("mremap that leaves the old range", left, SIZE, 15);
        zoo_verify_value("the range that was left", area[15], SIZE, 0);
    } else zoo_verify("mremap that leaves the old range", area[15], SIZE, 15);
    unsigned char *far = mremap(area[16], SIZE, 4ul << 30, MREMAP_MAYMOVE);            /* what lies behind it in a file? */
    if (result("mremap to 4 GiB", far == MAP_FAILED ? -1 : 0)) {
        zoo_verify("mremap to 4 GiB", far, SIZE, 16);
        for (size_t at = SIZE; at < 4ul << 30; at += 64 * PAGE)
            if (far[at]) {
                BAD("mremap to 4 GiB: byte %zu is %02x", at, far[at]);
                break;
            }
    } else zoo_verify("mremap to 4 GiB", area[16], SIZE, 16);

    CHECK(!munmap(area[17] + PAGE, PAGE), "munmap");
    CHECK(mmap(area[17] + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == area[17] + PAGE, "mmap");
    expect("mapped anew in the middle", area[17], 17, PAGE, PAGE, 1);
    CHECK(mmap(area[18], SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == area[18], "mmap");
    zoo_verify_value("mapped anew", area[18], SIZE, 0);
    zoo_fill(area[18], SIZE, 18);
    drop("DONTNEED of what was mapped anew", 18, MADV_DONTNEED, 0, SIZE);
    CHECK(!mprotect(area[19], SIZE, PROT_NONE) && !mprotect(area[19], SIZE, PROT_READ | PROT_WRITE), "mprotect");
    zoo_verify("after mprotect", area[19], SIZE, 19);

    static const int harmless[] = {MADV_COLD, MADV_PAGEOUT, MADV_HUGEPAGE, MADV_COLLAPSE, MADV_POPULATE_READ, MADV_POPULATE_WRITE,
                                   MADV_WILLNEED, MADV_RANDOM, MADV_SEQUENTIAL, MADV_NORMAL, MADV_DONTDUMP, MADV_DODUMP, MADV_MERGEABLE};
    for (unsigned i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        if (madvise(area[20], SIZE, harmless[i])) refused++;
        if (zoo_verify("after harmless advice", area[20], SIZE, 20)) zoo_say("BAD the advice was %d", harmless[i]);
    }
    pid_t child = fork();
    if (!child) {
        zoo_verify("in a child", area[21], SIZE, 21);
        area[21][0] = 0xFE;
        drop("DONTNEED in a child", 22, MADV_DONTNEED, 0, SIZE);
        _exit(zoo_differences ? 1 : 0);
    }
    CHECK(zoo_wait(child) == 0, "a child");
    zoo_verify("after a child wrote", area[21], SIZE, 21);
    zoo_verify("after a child dropped", area[22], SIZE, 22);
    int file = open("direct", O_CREAT | O_TRUNC | O_RDWR, 0600), direct = -1;
    CHECK(write(file, area[23], SIZE) == SIZE && !fsync(file) && (direct = open("direct", O_RDWR | O_DIRECT)) >= 0, "O_DIRECT: %s",
          strerror(errno));
    if (!zoo_differences) {
        CHECK(pread(direct, area[24], SIZE, 0) == SIZE, "direct read: %s", strerror(errno));
        CHECK(!memcmp(area[23], area[24], SIZE), "direct read into old memory");
        CHECK(pwrite(direct, area[25], SIZE, 0) == SIZE && pread(direct, reused, SIZE, 0) == SIZE, "direct write");
        zoo_verify("direct write from old memory", reused, SIZE, 25);
    }
    zoo_say("note: %d calls done, %d refused", done, refused);
    return zoo_done();
}
