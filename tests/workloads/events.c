/* What wakes a program: eventfd, epoll, timers of every kind, signals that wait, a descriptor of a process. */
#include "zoo.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>

static volatile sig_atomic_t alarms, virtual_ticks, real_time;
static volatile int value_seen;

static void on_alarm(int number) { (void)number, alarms++; }
static void on_virtual(int number) { (void)number, virtual_ticks++; }
static void on_real_time(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    real_time++;
    value_seen = info->si_value.sival_int;
}

static int wait_until(volatile sig_atomic_t *word, long milliseconds) {
    while (!*word && milliseconds-- > 0) {
        struct timespec step = {0, 1000000};
        nanosleep(&step, NULL);
    }
    return *word != 0;
}

static int readable_within(int fd, int milliseconds) {
    struct pollfd item = {fd, POLLIN, 0};
    return poll(&item, 1, milliseconds) == 1 && item.revents == POLLIN;
}

static int readable(int fd) { return readable_within(fd, 0); }

int main(void) {
    uint64_t count;

    /* eventfd: a counter, one inside of two epolls, one that is quiet (CRIU carries 32 bits of the count, and no semaphores:
     * those are refused) */
    int counter = eventfd(0, EFD_NONBLOCK), nested_counter = eventfd(3, EFD_CLOEXEC), quiet = eventfd(0, 0);
    NEED(counter >= 0 && nested_counter >= 0 && quiet >= 0 && !eventfd_write(counter, 0xF2345678));

    /* timerfd: armed far away, due soon, periodic, absolute, never armed */
    int far = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), soon = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    int periodic = timerfd_create(CLOCK_MONOTONIC, 0), idle = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
    struct itimerspec hour = {{0, 0}, {3600, 0}}, blink = {{0, 0}, {0, 1000000}}, beat = {{0, 50000000}, {0, 50000000}};
    NEED(!timerfd_settime(far, 0, &hour, NULL) && !timerfd_settime(soon, 0, &blink, NULL));
    NEED(!timerfd_settime(periodic, 0, &beat, NULL) && idle >= 0);

    /* epoll: level and edge, one-shot spent and not, data of the user's; nested */
    int epoll = epoll_create1(EPOLL_CLOEXEC), inner = epoll_create1(0);
    struct epoll_event level = {EPOLLIN, {.u64 = 0xDEADBEEF01}}, edge = {EPOLLIN | EPOLLET, {.u64 = 0xDEADBEEF02}};
    struct epoll_event once = {EPOLLIN | EPOLLONESHOT, {.u64 = 0xDEADBEEF03}}, nested = {EPOLLIN, {.u64 = 0xDEADBEEF04}};
    NEED(!epoll_ctl(epoll, EPOLL_CTL_ADD, counter, &level) && !epoll_ctl(epoll, EPOLL_CTL_ADD, quiet, &edge));
    NEED(!epoll_ctl(inner, EPOLL_CTL_ADD, nested_counter, &once) && !epoll_ctl(epoll, EPOLL_CTL_ADD, inner, &nested));

    /* signals: blocked and waiting, for the process and for the thread, with values and in a queue; a signalfd */
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGUSR2);
    sigaddset(&blocked, SIGRTMIN + 3);
    sigaddset(&blocked, SIGRTMIN + 4);
    NEED(!sigprocmask(SIG_BLOCK, &blocked, NULL));
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGUSR1);
    sigaddset(&watched, SIGRTMIN + 3);
    int signals = signalfd(-1, &watched, SFD_NONBLOCK);
    NEED(signals >= 0 && !kill(getpid(), SIGUSR1) && !pthread_kill(pthread_self(), SIGUSR2));
    for (int i = 0; i < 3; i++) NEED(!sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = 1000 + i}));

    /* timers that signal: real (armed for an hour, and one that rings after "go"), virtual, POSIX */
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    NEED(!sigaction(SIGALRM, &action, NULL));
    action.sa_handler = on_virtual;
    NEED(!sigaction(SIGVTALRM, &action, NULL));
    struct sigaction queued = {.sa_sigaction = on_real_time, .sa_flags = SA_SIGINFO};
    NEED(!sigaction(SIGRTMIN + 5, &queued, NULL));
    struct itimerval alarm = {{0, 0}, {1800, 0}}, work = {{0, 0}, {0, 400000}};
    NEED(!setitimer(ITIMER_REAL, &alarm, NULL) && !setitimer(ITIMER_VIRTUAL, &work, NULL));
    timer_t timer, second;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 5, .sigev_value.sival_int = 4242};
    struct itimerspec every = {{7, 0}, {900, 0}};
    NEED(!timer_create(CLOCK_MONOTONIC, &event, &timer) && !timer_settime(timer, 0, &every, NULL));
    NEED(!timer_create(CLOCK_MONOTONIC, &event, &second));

    zoo_nap(20);
    zoo_ready();

    CHECK(read(counter, &count, 8) == 8 && count == 0xF2345678, "eventfd counts %llx", (unsigned long long)count);
    CHECK(read(counter, &count, 8) == -1 && errno == EAGAIN, "an empty eventfd that does not block");
    CHECK(!eventfd_write(counter, 9), "eventfd");

    struct epoll_event found[8];
    unsigned seen = 0;
    int number = epoll_wait(epoll, found, 8, 0);
    for (int i = 0; i < number; i++) seen |= 1u << (found[i].data.u64 - 0xDEADBEEF00);
    CHECK(seen == (1u << 1 | 1u << 4), "epoll reports %x in %d events", seen, number);
    CHECK(!eventfd_write(quiet, 1) && epoll_wait(epoll, found, 8, 0) == 3, "an edge is reported");
    CHECK(epoll_wait(epoll, found, 8, 0) == 2, "an edge is reported once");
    CHECK(epoll_wait(inner, found, 8, 0) == 1 && found[0].data.u64 == 0xDEADBEEF03, "the inner epoll");
    CHECK(epoll_wait(inner, found, 8, 0) == 0, "a one-shot event came twice");
    CHECK(read(nested_counter, &count, 8) == 8 && count == 3 && !readable(nested_counter), "the inner epoll's eventfd");
    CHECK(fcntl(nested_counter, F_GETFD) == FD_CLOEXEC, "close-on-exec");

    struct itimerspec left;
    CHECK(!timerfd_gettime(far, &left) && left.it_value.tv_sec > 3000 && left.it_value.tv_sec <= 3600, "%ld s are left",
          (long)left.it_value.tv_sec);
    CHECK(read(soon, &count, 8) == 8 && count == 1, "a timer that was due");
    for (int i = 0; i < 3; i++)                                    /* its tick was due, and unread, when it was captured */
        CHECK(readable_within(periodic, 3000) && read(periodic, &count, 8) == 8 && count >= 1, "the periodic timer, read %d", i);
    CHECK(!timerfd_gettime(periodic, &left) && left.it_interval.tv_nsec == 50000000, "its interval");
    CHECK(!timerfd_gettime(idle, &left) && !left.it_value.tv_sec && !left.it_value.tv_nsec, "a timer nobody armed");

    sigset_t pending;
    CHECK(!sigpending(&pending) && sigismember(&pending, SIGUSR1) && sigismember(&pending, SIGUSR2), "signals that wait");
    CHECK(!sigismember(&pending, SIGRTMIN + 4), "a signal nobody sent");
    struct signalfd_siginfo info;
    unsigned long values = 0;
    for (int i = 0; i < 4; i++) {
        CHECK(read(signals, &info, sizeof info) == (ssize_t)sizeof info, "signal %d: %s", i, strerror(errno));
        CHECK(info.ssi_pid == (uint32_t)getpid(), "signal %u came from %u", info.ssi_signo, info.ssi_pid);
        if (info.ssi_signo == (uint32_t)SIGRTMIN + 3) values = values * 10000 + (unsigned long)info.ssi_int;
    }
    CHECK(values == 100010011002ul, "queued values %lu", values);
    CHECK(read(signals, &info, sizeof info) == -1 && errno == EAGAIN, "one signal too many: %u", info.ssi_signo);
    siginfo_t detail;
    sigset_t rest;
    sigemptyset(&rest);
    sigaddset(&rest, SIGUSR2);
    struct timespec none = {0, 0};
    CHECK(sigtimedwait(&rest, &detail, &none) == SIGUSR2 && detail.si_pid == getpid(), "the thread's own signal");

    struct itimerval now;
    CHECK(!getitimer(ITIMER_REAL, &now) && now.it_value.tv_sec > 1500 && now.it_value.tv_sec <= 1800, "alarm in %ld s",
          (long)now.it_value.tv_sec);
    CHECK(!alarms, "the alarm rang %d times", (int)alarms);
    struct itimerval at_once = {{0, 0}, {0, 1000}};
    CHECK(!setitimer(ITIMER_REAL, &at_once, NULL) && wait_until(&alarms, 5000), "the alarm does not ring");
    for (volatile unsigned long i = 0; !virtual_ticks && i < 4000000000ul; i++) continue;
    CHECK(virtual_ticks == 1, "the virtual timer rang %d times", (int)virtual_ticks);
    CHECK(!timer_gettime(timer, &left) && left.it_value.tv_sec > 600 && left.it_interval.tv_sec == 7, "POSIX timer: %ld, %ld",
          (long)left.it_value.tv_sec, (long)left.it_interval.tv_sec);
    CHECK(!timer_gettime(second, &left) && !left.it_value.tv_sec, "a POSIX timer nobody armed");
    struct itimerspec quick = {{0, 0}, {0, 1000000}};
    CHECK(!timer_settime(second, 0, &quick, NULL) && wait_until(&real_time, 5000), "the POSIX timer does not ring");
    CHECK(value_seen == 4242, "its value is %d", value_seen);
    return zoo_done();
}
