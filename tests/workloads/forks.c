/* Processes that share addresses but not content: a parent and children with different bytes in the same ranges. */
#include "zoo.h"
#include <sys/prctl.h>

enum { SIZE = 8 << 20, SHARED = 64 << 20, CHILDREN = 3 };

static unsigned char *block, *shared, *untouched;
static char *heap;

/* Everything that process `who` (0: the parent) must find; `phase` is part of what is shared. */
static void check(int who) {
    char name[32];
    snprintf(name, sizeof name, "process %d", who);
    size_t half = SIZE / 2;
    if (who == 0) zoo_verify(name, block, SIZE, 0);
    else {
        zoo_verify(name, block, half, who);                       /* written after the fork */
        for (size_t i = half; i < SIZE; i++)                      /* inherited, copy on write */
            if (block[i] != zoo_byte(0, i)) {
                BAD("%s: inherited byte %zu is %02x", name, i, block[i]);
                break;
            }
    }
    zoo_verify_value(name, untouched, SIZE, 0);
    char expected[32];
    snprintf(expected, sizeof expected, "heap of %d", who);
    CHECK(!strcmp(heap, expected), "%s has \"%s\"", name, heap);
    zoo_verify(name, shared + who * 4096, 4096, 100 + who);
    zoo_verify(name, shared + SHARED - (4 << 20), 4 << 20, 99);
    zoo_verify_value(name, shared + (8 << 20), 4 << 20, 0);
}

static void become(int who) {
    if (who) zoo_fill(block, SIZE / 2, who);
    snprintf(heap, 32, "heap of %d", who);
    zoo_fill(shared + who * 4096, 4096, 100 + who);
}

static int wait_for(volatile int *word, int value) {
    for (int i = 0; i < 5000 && *word != value; i++) zoo_nap(2);
    return *word == value;
}

int main(void) {
    block = zoo_memory(SIZE, 0);
    untouched = zoo_map(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    shared = zoo_map(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_SHARED);
    volatile int *counter = (int *)(shared + (16 << 20)), *board = counter + 16, *turn = counter + 32;
    zoo_fill(shared + SHARED - (4 << 20), 4 << 20, 99);
    heap = malloc(32);
    NEED(heap);
    become(0);

    pid_t children[CHILDREN + 1], parent = getpid();
    for (int who = 1; who <= CHILDREN; who++) {
        children[who] = fork();
        NEED(children[who] >= 0);
        if (children[who]) continue;
        become(who);
        if (who == CHILDREN) {                                    /* this one has a child of its own, in a new session */
            pid_t grandchild = fork();
            NEED(grandchild >= 0);
            if (!grandchild) {
                NEED(setsid() == getpid());
                become(CHILDREN + 1);
                board[CHILDREN + 1] = getpid();
                __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
                zoo_await_go();
                check(CHILDREN + 1);
                CHECK(getsid(0) == getpid(), "session %d", getsid(0));
                CHECK(getppid() == board[CHILDREN], "parent is %d", getppid());
                _exit(zoo_differences ? 1 : 0);
            }
            board[who] = getpid();
            __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
            zoo_await_go();
            check(who);
            CHECK(zoo_wait(grandchild) == 0, "grandchild");
        } else {
            if (who == 2) NEED(!setpgid(0, 0));
            board[who] = getpid();
            __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
            zoo_await_go();
            check(who);
            if (who == 2) CHECK(getpgrp() == getpid(), "process group %d", getpgrp());
            if (who == 1) {                                       /* shared memory is still one memory */
                CHECK(wait_for(turn, 1), "turn is %d", *turn);
                *turn = 2;
            }
        }
        CHECK(getppid() == parent, "parent is %d instead of %d", getppid(), parent);
        _exit(zoo_differences ? 1 : 0);
    }
    pid_t zombie = fork();
    NEED(zombie >= 0);
    if (!zombie) _exit(42);
    siginfo_t info;
    NEED(!waitid(P_PID, zombie, &info, WEXITED | WNOWAIT));
    NEED(wait_for(counter, CHILDREN + 1));

    zoo_ready();
    check(0);
    CHECK(getpid() == parent, "pid %d instead of %d", getpid(), parent);
    *turn = 1;
    CHECK(wait_for(turn, 2), "child 1 did not see the turn: %d", *turn);
    for (int who = 1; who <= CHILDREN; who++) {
        CHECK(children[who] == board[who], "child %d", who);
        CHECK(zoo_wait(children[who]) == 0, "child %d", who);
    }
    CHECK(zoo_wait(zombie) == 42, "zombie's exit code");
    pid_t later = fork();                                         /* a fork after the restore inherits right bytes */
    if (!later) {
        check(0);
        block[5] ^= 0xFF;
        _exit(zoo_differences ? 1 : 0);
    }
    CHECK(zoo_wait(later) == 0, "a later child");
    zoo_verify("after a later child wrote", block, SIZE, 0);
    return zoo_done();
}
