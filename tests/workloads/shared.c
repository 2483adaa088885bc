/* Memory with names and without that two processes share: memfd, POSIX shared memory, semaphores, sparse parts. */
#include "zoo.h"
#include <semaphore.h>
#include <sys/stat.h>

enum { LARGE = 64 << 20, SMALL = 3 << 20 };
static const off_t SPARSE = 512 << 20;

static char name[64];

static const char *named(const char *what) {
    snprintf(name, sizeof name, "/hotstart-zoo-%s", what);
    return name;
}

static unsigned char *map(int fd, size_t length, int protection, int flags) {
    unsigned char *area = mmap(NULL, length, protection, flags, fd, 0);
    NEED(area != MAP_FAILED);
    return area;
}

static long blocks(int fd) {
    struct stat state;
    return fstat(fd, &state) ? -1 : (long)state.st_blocks;
}

static int sem_value(sem_t *semaphore) {
    int value = -1;
    return sem_getvalue(semaphore, &value) ? -1 : value;
}

int main(void) {
    /* memfds: mapped by two processes, mapped privately, not mapped at all, sealed, large, with an offset */
    int memfd = memfd_create("content", MFD_CLOEXEC), large = memfd_create("large", 0), plain = memfd_create("plain", 0);
    int sealed = memfd_create("sealed", MFD_ALLOW_SEALING);
    NEED(!ftruncate(memfd, SMALL) && !ftruncate(large, LARGE) && !ftruncate(sealed, SMALL));
    unsigned char *first = map(memfd, SMALL, PROT_READ | PROT_WRITE, MAP_SHARED);
    unsigned char *second = map(memfd, SMALL, PROT_READ, MAP_SHARED);
    unsigned char *private = map(memfd, SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    zoo_fill(first, SMALL, 1);
    zoo_fill(private, 4096, 2);
    unsigned char *big = map(large, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    zoo_fill(big + (8 << 20), 40 << 20, 3);
    unsigned char *closed = map(sealed, SMALL, PROT_READ | PROT_WRITE, MAP_SHARED);
    zoo_fill(closed, SMALL, 4);
    munmap(closed, SMALL);
    NEED(!fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW));
    unsigned char text[5000];
    zoo_fill(text, sizeof text, 5);
    NEED(write(plain, text, sizeof text) == (ssize_t)sizeof text && lseek(plain, 1234, SEEK_SET) == 1234);

    /* POSIX shared memory: named; unlinked while mapped; sparse, of which little is used */
    shm_unlink(named("shm"));
    shm_unlink(named("gone"));
    shm_unlink(named("sparse"));
    int shm = shm_open(named("shm"), O_CREAT | O_EXCL | O_RDWR, 0600);
    int gone = shm_open(named("gone"), O_CREAT | O_EXCL | O_RDWR, 0600);
    int sparse = shm_open(named("sparse"), O_CREAT | O_EXCL | O_RDWR, 0640);
    NEED(shm >= 0 && gone >= 0 && sparse >= 0 && !ftruncate(shm, SMALL) && !ftruncate(gone, SMALL) && !ftruncate(sparse, SPARSE));
    unsigned char *area = map(shm, SMALL, PROT_READ | PROT_WRITE, MAP_SHARED);
    unsigned char *ghost = map(gone, SMALL, PROT_READ | PROT_WRITE, MAP_SHARED);
    unsigned char *ring = map(sparse, SPARSE, PROT_READ | PROT_WRITE, MAP_SHARED);
    zoo_fill(area, SMALL, 6);
    zoo_fill(ghost, SMALL, 7);
    zoo_fill(ring + (100 << 20), 4096, 8);
    zoo_fill(ring + (400 << 20), 3 << 20, 9);
    NEED(!shm_unlink(named("gone")) && !close(gone) && !close(shm));

    /* semaphores: with a name, without a name any more, in shared memory */
    sem_unlink(named("kept"));
    sem_unlink(named("unlinked"));
    sem_t *kept = sem_open(named("kept"), O_CREAT | O_EXCL, 0600, 5);
    sem_t *unlinked = sem_open(named("unlinked"), O_CREAT | O_EXCL, 0600, 2);
    NEED(kept != SEM_FAILED && unlinked != SEM_FAILED && !sem_wait(kept) && !sem_unlink(named("unlinked")));
    unsigned char *anonymous = zoo_map(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    zoo_fill(anonymous + (4 << 20), 32 << 20, 10);
    sem_t *asked = (sem_t *)anonymous, *answered = asked + 1;
    NEED(!sem_init(asked, 1, 0) && !sem_init(answered, 1, 0));

    /* another process that maps the same, and waits in sem_wait */
    pid_t other = fork();
    NEED(other >= 0);
    if (!other) {
        while (sem_wait(asked) && errno == EINTR) continue;
        zoo_verify("the child's view of memfd", first, 1 << 20, 1);
        zoo_verify("the child's view of shared memory", area, 1 << 20, 6);
        CHECK(area[2 << 20] == 0x77 && first[2 << 20] == 0x78 && anonymous[3 << 20] == 0x79, "what the parent wrote");
        area[(2 << 20) + 1] = 0x87;
        ghost[5] = 0x88;
        CHECK(!sem_post(unlinked) && !sem_post(answered), "semaphores");
        _exit(zoo_differences ? 1 : 0);
    }
    long large_blocks = blocks(large), sparse_blocks = blocks(sparse);

    zoo_ready();

    zoo_verify("memfd", first, SMALL, 1);
    zoo_verify("memfd, mapped twice", second, SMALL, 1);
    zoo_verify("memfd, private page", private, 4096, 2);
    CHECK(!memcmp(private + 4096, first + 4096, SMALL - 4096), "memfd, private mapping");
    first[9] = 0x55;
    CHECK(second[9] == 0x55, "two mappings of one memfd are two memories");
    first[9] = zoo_byte(1, 9);
    zoo_verify("large memfd", big + (8 << 20), 40 << 20, 3);
    zoo_verify_value("large memfd, begin", big, 8 << 20, 0);
    CHECK(blocks(large) <= large_blocks + 8 * (8 << 20) / 4096, "large memfd has %ld blocks instead of %ld", blocks(large), large_blocks);
    CHECK(fcntl(sealed, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), "seals %x", fcntl(sealed, F_GET_SEALS));
    closed = map(sealed, SMALL, PROT_READ, MAP_SHARED);
    zoo_verify("sealed memfd", closed, SMALL, 4);
    CHECK(lseek(plain, 0, SEEK_CUR) == 1234, "the memfd's offset is %ld", (long)lseek(plain, 0, SEEK_CUR));
    unsigned char found[sizeof text];
    CHECK(pread(plain, found, sizeof found, 0) == (ssize_t)sizeof found && !memcmp(found, text, sizeof text), "plain memfd");

    zoo_verify("shared memory", area, SMALL, 6);
    zoo_verify("unlinked shared memory", ghost, SMALL, 7);
    zoo_verify("sparse shared memory", ring + (100 << 20), 4096, 8);
    zoo_verify("sparse shared memory", ring + (400 << 20), 3 << 20, 9);
    struct stat state;
    CHECK(!fstat(sparse, &state) && state.st_size == SPARSE && (state.st_mode & 0777) == 0640, "sparse shared memory's inode");
    CHECK(blocks(sparse) <= sparse_blocks + 128, "sparse shared memory has %ld blocks instead of %ld", blocks(sparse), sparse_blocks);
    zoo_verify_value("sparse shared memory, hole", ring + (200 << 20), 1 << 20, 0);
    int again = shm_open(named("shm"), O_RDWR, 0);
    CHECK(again >= 0, "the shared memory's name is gone");
    if (again >= 0) {
        unsigned char *fresh = map(again, SMALL, PROT_READ, MAP_SHARED);
        zoo_verify("shared memory by its name", fresh, SMALL, 6);
        area[11] = 0x66;
        CHECK(fresh[11] == 0x66, "the name leads to other memory");
        area[11] = zoo_byte(6, 11);
    }
    CHECK(shm_open(named("gone"), O_RDWR, 0) == -1 && errno == ENOENT, "an unlinked name is back");

    CHECK(sem_value(kept) == 4 && sem_value(unlinked) == 2, "semaphores are at %d and %d", sem_value(kept), sem_value(unlinked));
    sem_t *opened = sem_open(named("kept"), 0);
    CHECK(opened != SEM_FAILED && !sem_post(opened) && sem_value(kept) == 5, "the semaphore's name leads to another");
    CHECK(sem_open(named("unlinked"), 0) == SEM_FAILED, "an unlinked semaphore's name is back");
    zoo_verify("shared anonymous memory", anonymous + (4 << 20), 32 << 20, 10);
    zoo_verify_value("shared anonymous memory, end", anonymous + (40 << 20), 24 << 20, 0);

    area[2 << 20] = 0x77;
    first[2 << 20] = 0x78;
    anonymous[3 << 20] = 0x79;
    CHECK(!sem_post(asked), "asking");
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    CHECK(!sem_timedwait(answered, &until), "the other process does not answer");
    CHECK(area[(2 << 20) + 1] == 0x87 && ghost[5] == 0x88, "what the other process wrote");
    CHECK(sem_value(unlinked) == 3, "the unlinked semaphore is not shared any more: %d", sem_value(unlinked));
    CHECK(zoo_wait(other) == 0, "the other process");
    shm_unlink(named("shm"));
    shm_unlink(named("sparse"));
    sem_unlink(named("kept"));
    return zoo_done();
}
