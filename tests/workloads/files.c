/* Open files: their offsets, flags and locks, files that have lost their names, logs that grow, mappings of files. */
#include "zoo.h"
#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>

enum { SIZE = 1 << 20 };

static int make(const char *name, uint64_t seed, size_t length, int flags) {
    int fd = open(name, O_CREAT | O_TRUNC | O_RDWR | flags, 0640);
    unsigned char *bytes = malloc(length);
    NEED(fd >= 0 && bytes);
    zoo_fill(bytes, length, seed);
    NEED(write(fd, bytes, length) == (ssize_t)length && lseek(fd, 0, SEEK_SET) == 0);
    free(bytes);
    return fd;
}

static void holds(const char *what, int fd, uint64_t seed, size_t length) {
    unsigned char *bytes = malloc(length + 1);
    ssize_t count = pread(fd, bytes, length + 1, 0);
    CHECK(count == (ssize_t)length, "%s has %zd bytes instead of %zu", what, count, length);
    if (count == (ssize_t)length) zoo_verify(what, bytes, length, seed);
    free(bytes);
}

static ino_t inode(int fd) {
    struct stat state;
    return fstat(fd, &state) ? 0 : state.st_ino;
}

static nlink_t links(int fd) {
    struct stat state;
    return fstat(fd, &state) ? 99 : state.st_nlink;
}

/* Would another process get this lock?  Asked by a child, which inherits neither kind of fcntl lock. */
static int locked_for_others(const char *name, int kind, off_t start) {
    pid_t child = fork();
    if (!child) {
        int fd = open(name, O_RDWR);
        struct flock lock = {.l_type = F_WRLCK, .l_start = start, .l_len = 1};
        if (kind == F_SETLK) _exit(fcntl(fd, F_SETLK, &lock) == -1 && (errno == EACCES || errno == EAGAIN));
        if (kind == F_OFD_SETLK) _exit(fcntl(fd, F_OFD_SETLK, &lock) == -1 && (errno == EACCES || errno == EAGAIN));
        _exit(flock(fd, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
    }
    return zoo_wait(child);
}

int main(void) {
    char text[64];

    /* offsets and flags; two descriptors of one description */
    int middle = make("middle", 1, SIZE, 0), shared = dup(middle), flagged = open("middle", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    NEED(lseek(middle, 777777, SEEK_SET) == 777777 && flagged >= 0 && lseek(flagged, 13, SEEK_SET) == 13);
    int high = fcntl(middle, F_DUPFD, 200);
    NEED(high >= 200);

    /* files whose names are gone: small, large, with another link left, a directory that is still open */
    int small = make("deleted", 2, 5000, 0), large = make("deleted-large", 3, 20 << 20, 0);
    NEED(!unlink("deleted") && !unlink("deleted-large") && lseek(small, 4000, SEEK_SET) == 4000);
    int linked = make("first-name", 4, 3000, 0);
    NEED(!link("first-name", "second-name") && !unlink("first-name"));
    int unnamed = make("deleted-shared", 5, 3000, 0), twin = open("deleted-shared", O_RDONLY);
    NEED(twin >= 0 && !unlink("deleted-shared"));
    unsigned char *mapped_deleted = mmap(NULL, 3000, PROT_READ | PROT_WRITE, MAP_SHARED, unnamed, 0);
    NEED(mapped_deleted != MAP_FAILED);

    /* renamed while open, replaced while open */
    int renamed = make("old-name", 6, 3000, 0);
    NEED(!rename("old-name", "new-name"));
    int replaced = make("replaced", 7, 3000, 0);
    close(make("replacement", 8, 2000, 0));
    NEED(!rename("replacement", "replaced"));

    /* a log in append mode, of two writers */
    int log = open("log", O_CREAT | O_WRONLY | O_APPEND, 0600), second = open("log", O_WRONLY | O_APPEND);
    NEED(log >= 0 && second >= 0);
    for (int i = 0; i < 100; i++) dprintf(i % 2 ? log : second, "line %d\n", i);

    /* directories: open at a position; by descriptor */
    NEED(!mkdir("directory", 0755));
    for (int i = 0; i < 50; i++) {
        snprintf(text, sizeof text, "directory/%02d", i);
        close(make(text, 20 + i, 10, 0));
    }
    DIR *listing = opendir("directory");
    int directory = open("directory", O_PATH | O_DIRECTORY), read_some = 0;
    NEED(listing && directory >= 0);
    while (read_some < 10 && readdir(listing)) read_some++;

    /* locks of the three kinds */
    int flocked = make("flock", 9, 10, 0), process_lock = make("fcntl", 10, 1000, 0), open_lock = make("ofd", 11, 1000, 0);
    struct flock lock = {.l_type = F_WRLCK, .l_start = 100, .l_len = 50}, reading = {.l_type = F_RDLCK, .l_start = 300, .l_len = 9};
    NEED(!flock(flocked, LOCK_EX) && !fcntl(process_lock, F_SETLK, &lock) && !fcntl(process_lock, F_SETLK, &reading));
    lock.l_pid = 0;
    NEED(!fcntl(open_lock, F_OFD_SETLK, &lock));

    /* mappings: shared and dirty, private with pages of its own, read-only at an offset, of a file that was deleted */
    int file = make("mapped", 12, SIZE, 0);
    unsigned char *dirty = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    unsigned char *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    unsigned char *later = mmap(NULL, SIZE / 2, PROT_READ, MAP_PRIVATE, file, SIZE / 2);
    NEED(dirty != MAP_FAILED && own != MAP_FAILED && later != MAP_FAILED);
    zoo_fill(dirty + 8192, 4096, 13);
    zoo_fill(own + 65536, 8192, 14);

    /* a file with holes, one with an attribute, times of its own */
    int sparse = open("sparse", O_CREAT | O_RDWR, 0600);
    NEED(sparse >= 0 && !ftruncate(sparse, 300 << 20) && pwrite(sparse, "here", 4, 200 << 20) == 4);
    int attributed = make("attributed", 15, 100, 0);
    int attributes = !fsetxattr(attributed, "user.zoo", "value", 5, 0);
    struct timespec times[2] = {{1000000000, 123456789}, {1111111111, 987654321}};
    NEED(!futimens(attributed, times));
    ino_t log_inode = inode(log);

    zoo_ready();

    CHECK(lseek(middle, 0, SEEK_CUR) == 777777, "offset %ld", (long)lseek(middle, 0, SEEK_CUR));
    CHECK(lseek(shared, 5, SEEK_SET) == 5 && lseek(middle, 0, SEEK_CUR) == 5, "a dup has an offset of its own");
    CHECK(lseek(high, 0, SEEK_CUR) == 5, "the high descriptor has an offset of its own");
    CHECK(lseek(flagged, 0, SEEK_CUR) == 13, "offset %ld", (long)lseek(flagged, 0, SEEK_CUR));
    CHECK((fcntl(flagged, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == (O_NONBLOCK | O_RDONLY), "flags %x", fcntl(flagged, F_GETFL));
    CHECK(fcntl(flagged, F_GETFD) == FD_CLOEXEC && fcntl(middle, F_GETFD) == 0, "close-on-exec");
    holds("middle", middle, 1, SIZE);

    holds("deleted", small, 2, 5000);
    CHECK(lseek(small, 0, SEEK_CUR) == 4000 && links(small) == 0, "deleted file has %ld links", (long)links(small));
    holds("large deleted", large, 3, 20 << 20);
    CHECK(access("deleted", F_OK) && access("deleted-large", F_OK) && access("deleted-shared", F_OK), "a name is back");
    holds("file with another name", linked, 4, 3000);
    int other_name = open("second-name", O_RDONLY);
    CHECK(other_name >= 0 && inode(other_name) == inode(linked), "the other name leads to another file");
    CHECK(access("first-name", F_OK), "first-name is back");
    holds("deleted, open twice", unnamed, 5, 3000);
    CHECK(pwrite(unnamed, "!", 1, 0) == 1 && pread(twin, text, 1, 0) == 1 && text[0] == '!' && mapped_deleted[0] == '!',
          "two descriptors and a mapping of one deleted file are not one file any more");
    holds("renamed", renamed, 6, 3000);
    int by_name = open("new-name", O_RDONLY);
    CHECK(by_name >= 0 && inode(by_name) == inode(renamed) && access("old-name", F_OK), "names after a rename");
    holds("replaced", replaced, 7, 3000);
    by_name = open("replaced", O_RDONLY);
    holds("replacement", by_name, 8, 2000);

    CHECK(dprintf(log, "after\n") == 6 && dprintf(second, "and after\n") == 10, "the log");
    int content = open("log", O_RDONLY);
    char expected[2048] = "", found[2048] = "";
    for (int i = 0; i < 100; i++) snprintf(expected + strlen(expected), 64, "line %d\n", i);
    strcat(expected, "after\nand after\n");
    CHECK(read(content, found, sizeof found - 1) == (ssize_t)strlen(expected) && !strcmp(found, expected), "the log holds %zu bytes",
          strlen(found));
    CHECK(inode(content) == inode(log) && (log_inode != 0), "the log is another file");

    int rest = 0;
    while (readdir(listing)) rest++;
    CHECK(rest == 42, "%d entries are left in the directory", rest);
    int inside = openat(directory, "07", O_RDONLY);
    CHECK(inside >= 0, "a file by its directory's descriptor");
    holds("a file by its directory's descriptor", inside, 27, 10);

    CHECK(locked_for_others("flock", 0, 0) == 1, "flock");
    CHECK(locked_for_others("fcntl", F_SETLK, 120) == 1 && locked_for_others("fcntl", F_SETLK, 300) == 1, "fcntl locks");
    CHECK(locked_for_others("fcntl", F_SETLK, 160) == 0, "fcntl locks more than it should");
    CHECK(locked_for_others("ofd", F_OFD_SETLK, 120) == 1, "lock of an open file description");
    CHECK(!flock(flocked, LOCK_UN) && locked_for_others("flock", 0, 0) == 0, "flock, unlocked");

    zoo_verify("shared mapping of a file", dirty + 8192, 4096, 13);
    zoo_verify("private mapping of a file", own + 65536, 8192, 14);
    zoo_verify("private mapping of a file, begin", own, 8192, 12);
    unsigned char *bytes = malloc(SIZE);
    zoo_fill(bytes, SIZE, 12);
    CHECK(!memcmp(later, bytes + SIZE / 2, SIZE / 2), "mapping at an offset");
    free(bytes);
    dirty[5] = 0xEE;
    CHECK(pread(file, text, 1, 5) == 1 && (unsigned char)text[0] == 0xEE && own[5] == 0xEE, "the mapping is not the file's");

    struct stat state;
    CHECK(!fstat(sparse, &state) && state.st_size == 300 << 20 && state.st_blocks < 4096, "sparse file: %ld bytes, %ld blocks",
          (long)state.st_size, (long)state.st_blocks);
    CHECK(pread(sparse, text, 4, 200 << 20) == 4 && !memcmp(text, "here", 4), "sparse file");
    if (attributes) CHECK(fgetxattr(attributed, "user.zoo", text, sizeof text) == 5 && !memcmp(text, "value", 5), "attribute");
    CHECK(!fstat(attributed, &state) && state.st_mtim.tv_sec == 1111111111 && state.st_mtim.tv_nsec == 987654321, "mtime %ld.%09ld",
          (long)state.st_mtim.tv_sec, state.st_mtim.tv_nsec);
    CHECK((state.st_mode & 07777) == 0640, "mode %o", state.st_mode);
    return zoo_done();
}
