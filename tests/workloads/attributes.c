/* What a process has besides memory and descriptors: limits, priority, masks, handlers, names, clocks, credentials. */
#include "zoo.h"
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

extern char **environ;

static volatile int handled;
static char directory[4096];

static void handler(int number, siginfo_t *info, void *context) {
    (void)info, (void)context;
    char here;
    handled = number + (&here > (char *)0 ? 1000 : 0);
}

static int on_alternate_stack;
static stack_t alternate;

static void on_stack(int number) {
    (void)number;
    char here;
    on_alternate_stack = &here >= (char *)alternate.ss_sp && &here < (char *)alternate.ss_sp + alternate.ss_size;
}

int main(void) {
    struct rlimit core = {0, 1 << 20}, files = {300, 512}, found;
    sigset_t mask, now;
    char name[17] = "", cwd[4096];

    NEED(!mkdir("deeper", 0755) && !chdir("deeper") && getcwd(directory, sizeof directory));
    NEED(!chdir("..") && !symlink("deeper", "way") && !chdir("way"));
    umask(0137);
    NEED(!setenv("ZOO_SET", "by the program", 1) && !unsetenv("LC_ALL"));
    NEED(!setrlimit(RLIMIT_CORE, &core) && !setrlimit(RLIMIT_NOFILE, &files));
    NEED(nice(7) == 7);
    NEED(!prctl(PR_SET_NAME, "zoo: attributes") && !prctl(PR_SET_DUMPABLE, 1));
    NEED(!sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}));

    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER};
    sigaddset(&action.sa_mask, SIGUSR2);
    NEED(!sigaction(SIGUSR1, &action, NULL));
    NEED(signal(SIGPIPE, SIG_IGN) != SIG_ERR && signal(SIGHUP, SIG_IGN) != SIG_ERR);
    alternate.ss_sp = malloc(SIGSTKSZ * 4);
    alternate.ss_size = SIGSTKSZ * 4;
    NEED(!sigaltstack(&alternate, NULL));
    struct sigaction stacked = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
    NEED(!sigaction(SIGWINCH, &stacked, NULL));
    sigemptyset(&mask);
    sigaddset(&mask, SIGCONT);
    sigaddset(&mask, SIGRTMIN + 9);
    NEED(!sigprocmask(SIG_SETMASK, &mask, NULL));

    pid_t pid = getpid(), parent = getppid(), session = getsid(0), group = getpgrp();
    uid_t real, effective, saved;
    gid_t groups[64];
    NEED(!getresuid(&real, &effective, &saved));
    int group_count = getgroups(64, groups);
    struct timespec monotonic, after, boot;
    NEED(!clock_gettime(CLOCK_MONOTONIC, &monotonic));
    double on_cpu = (double)clock() / CLOCKS_PER_SEC;
    long dumpable = prctl(PR_GET_DUMPABLE);

    /* "go" appears in the directory above */
    zoo_say("ready");
    while (access("../go", F_OK)) zoo_nap(20);

    CHECK(getcwd(cwd, sizeof cwd) && !strcmp(cwd, directory), "working directory %s", cwd);
    int fd = open("created", O_CREAT | O_WRONLY, 0777);
    struct stat state;
    CHECK(fd >= 0 && !fstat(fd, &state) && (state.st_mode & 0777) == 0640, "umask makes mode %o", state.st_mode & 0777);
    CHECK(getenv("ZOO_SET") && !strcmp(getenv("ZOO_SET"), "by the program"), "environment");
    CHECK(!getenv("LC_ALL") && getenv("PATH"), "environment");
    int seen = 0;
    FILE *proc = fopen("/proc/self/environ", "r");
    for (int c; proc && (c = fgetc(proc)) != EOF;) seen += c == 0;
    CHECK(seen > 0, "/proc/self/environ is empty");

    CHECK(!getrlimit(RLIMIT_CORE, &found) && found.rlim_cur == 0 && found.rlim_max == 1 << 20, "RLIMIT_CORE");
    CHECK(!getrlimit(RLIMIT_NOFILE, &found) && found.rlim_cur == 300 && found.rlim_max == 512, "RLIMIT_NOFILE %ld %ld",
          (long)found.rlim_cur, (long)found.rlim_max);
    CHECK(getpriority(PRIO_PROCESS, 0) == 7, "priority %d", getpriority(PRIO_PROCESS, 0));
    CHECK(sched_getscheduler(0) == SCHED_BATCH, "scheduler %d", sched_getscheduler(0));
    CHECK(!prctl(PR_GET_NAME, name) && !strcmp(name, "zoo: attributes"), "name %s", name);
    CHECK(prctl(PR_GET_DUMPABLE) == dumpable, "dumpable %d", prctl(PR_GET_DUMPABLE));
    CHECK(getpid() == pid && getppid() == parent && getsid(0) == session && getpgrp() == group, "ids %d %d %d %d", getpid(),
          getppid(), getsid(0), getpgrp());
    uid_t r, e, s;
    gid_t now_groups[64];
    CHECK(!getresuid(&r, &e, &s) && r == real && e == effective && s == saved, "user ids %d %d %d", r, e, s);
    CHECK(getgroups(64, now_groups) == group_count && !memcmp(groups, now_groups, (size_t)group_count * sizeof *groups), "groups");

    CHECK(!sigprocmask(SIG_SETMASK, NULL, &now), "mask");
    for (int i = 1; i < SIGRTMAX; i++)
        if (i < 32 || i >= SIGRTMIN) CHECK(sigismember(&now, i) == sigismember(&mask, i), "signal %d in the mask", i);
    struct sigaction old;
    CHECK(!sigaction(SIGUSR1, NULL, &old) && old.sa_sigaction == handler, "handler");
    CHECK((old.sa_flags & (SA_SIGINFO | SA_RESTART | SA_NODEFER)) == (SA_SIGINFO | SA_RESTART | SA_NODEFER), "flags %x", old.sa_flags);
    CHECK(sigismember(&old.sa_mask, SIGUSR2) == 1 && sigismember(&old.sa_mask, SIGUSR1) == 0, "the handler's mask");
    CHECK(!sigaction(SIGPIPE, NULL, &old) && old.sa_handler == SIG_IGN, "SIGPIPE");
    CHECK(!sigaction(SIGHUP, NULL, &old) && old.sa_handler == SIG_IGN, "SIGHUP");
    CHECK(!sigaction(SIGTERM, NULL, &old) && old.sa_handler == SIG_DFL, "SIGTERM");
    raise(SIGUSR1);
    CHECK(handled == SIGUSR1 + 1000, "handled %d", handled);
    stack_t stack;
    CHECK(!sigaltstack(NULL, &stack) && stack.ss_sp == alternate.ss_sp && stack.ss_size == alternate.ss_size, "alternate stack");
    raise(SIGWINCH);
    CHECK(on_alternate_stack, "the handler does not run on the alternate stack");

    CHECK(!clock_gettime(CLOCK_MONOTONIC, &after) && !clock_gettime(CLOCK_BOOTTIME, &boot), "clocks");
    CHECK(after.tv_sec >= monotonic.tv_sec, "CLOCK_MONOTONIC goes back from %ld to %ld", (long)monotonic.tv_sec, (long)after.tv_sec);
    CHECK((double)clock() / CLOCKS_PER_SEC < on_cpu + 60, "CPU time");
    return zoo_done();
}
