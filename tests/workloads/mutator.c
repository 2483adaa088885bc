/* A program that writes, drops and remaps all the time while it is captured: what comes back must be one moment of it. */
#include "zoo.h"

enum { PAGES = 20000, PAGE = 4096, AREA = 4 << 20 };

static volatile uint64_t *pages;
static unsigned char *area = (unsigned char *)0x210000000000ul;
static volatile uint64_t generation = 1;

/* Pages before `next` carry the generation, the others the one before. */
static void check_pages(long next) {
    long wrong = 0, first = -1;
    for (long i = 0; i < PAGES; i++)
        if (pages[i * PAGE / 8] != (i < next ? generation : generation - 1) && !wrong++) first = i;
    CHECK(!wrong, "%ld pages are of another moment, first %ld: %llu, generation %llu, next %ld", wrong, first,
          (unsigned long long)pages[first * PAGE / 8], (unsigned long long)generation, next);
}

/* The area is mapped anew in each generation; half of it is written, and two of those pages are dropped. */
static void check_area(void) {
    for (long at = 0; at < AREA; at += PAGE) {
        int dropped = at >= 2 * PAGE && at < 4 * PAGE;
        uint64_t found = *(volatile uint64_t *)(area + at), right = at < AREA / 2 && !dropped ? generation : 0;
        if (found != right && !(dropped && found == generation)) {
            BAD("area at %ld: %llu instead of %llu", at, (unsigned long long)found, (unsigned long long)right);
            return;
        }
    }
}

int main(void) {
    pages = (uint64_t *)zoo_map(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    for (long i = 0; i < PAGES; i++) pages[i * PAGE / 8] = generation;
    zoo_say("ready");
    for (;;) {
        generation++;
        if (mmap(area, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != area) return 2;
        for (long at = 0; at < AREA / 2; at += PAGE) *(volatile uint64_t *)(area + at) = generation;
        madvise(area + 2 * PAGE, 2 * PAGE, MADV_DONTNEED);
        for (long i = 0; i < PAGES; i++) {
            if (!(i % 64)) {
                if (!access("go", F_OK)) {
                    check_pages(i);
                    check_area();
                    return zoo_done();
                }
                if (!(i % 4096)) zoo_nap(1);
            }
            pages[i * PAGE / 8] = generation;
        }
    }
}
