/* Everything that carries bytes between processes, with bytes on their way. */
#include "zoo.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { FLIGHT = 3000 };

static void put(int fd, uint64_t seed, size_t length) {
    unsigned char bytes[length];
    zoo_fill(bytes, length, seed);
    NEED(write(fd, bytes, length) == (ssize_t)length);
}

/* Read exactly `length` bytes and compare them; `packets` keep their borders, so each read must give all of it. */
static void get(const char *what, int fd, uint64_t seed, size_t length) {
    unsigned char bytes[length];
    size_t got = 0;
    while (got < length) {
        ssize_t count = read(fd, bytes + got, length - got);
        if (count <= 0) {
            BAD("%s: read gives %zd (%s) after %zu of %zu bytes", what, count, count ? strerror(errno) : "end", got, length);
            return;
        }
        got += (size_t)count;
    }
    zoo_verify(what, bytes, length, seed);
}

static void packet(const char *what, int fd, uint64_t seed, size_t length) {
    unsigned char bytes[2 * length + 1];
    ssize_t count = recv(fd, bytes, sizeof bytes, 0);
    CHECK(count == (ssize_t)length, "%s: a packet of %zd bytes", what, count);
    if (count == (ssize_t)length) zoo_verify(what, bytes, length, seed);
}

static void both_ways(const char *what, int a, int b) {
    for (int round = 0; round < 3; round++) {
        put(a, 700 + round, 500);
        get(what, b, 700 + round, 500);
        put(b, 710 + round, 500);
        get(what, a, 710 + round, 500);
    }
}

static int unix_address(struct sockaddr_un *address, const char *name) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    size_t length = strlen(name);
    memcpy(address->sun_path, name, length);
    if (name[0] == '@') address->sun_path[0] = 0;
    return (int)(offsetof(struct sockaddr_un, sun_path) + length + (name[0] != '@'));
}

static int unix_listen(const char *name) {
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), length = unix_address(&address, name);
    NEED(fd >= 0 && !bind(fd, (void *)&address, length) && !listen(fd, 8));
    return fd;
}

static int unix_connect(const char *name) {
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), length = unix_address(&address, name);
    NEED(fd >= 0 && !connect(fd, (void *)&address, length));
    return fd;
}

static int tcp_listen(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    NEED(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    NEED(!bind(fd, (void *)address, sizeof *address) && !listen(fd, 16));
    NEED(!getsockname(fd, (void *)address, &length));
    return fd;
}

static int tcp_connect(const struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    NEED(fd >= 0 && !connect(fd, (const void *)address, sizeof *address));
    return fd;
}

int main(void) {
    int half[2], full[2], child_pipe[2], stream[2], datagram[2], sequence[2], fifo;

    /* pipes: some data, one that is full, one shared with a child */
    NEED(!pipe(half) && !pipe2(full, O_NONBLOCK | O_CLOEXEC) && !pipe(child_pipe));
    NEED(fcntl(half[1], F_SETPIPE_SZ, 1 << 18) >= 1 << 18);
    put(half[1], 1, FLIGHT);
    size_t capacity = 0;
    char page[4096];
    for (ssize_t count; (count = write(full[1], (zoo_fill(page, sizeof page, capacity / sizeof page), page), sizeof page)) > 0;)
        capacity += (size_t)count;
    NEED(errno == EAGAIN && capacity >= 65536);

    /* a named pipe */
    NEED(!mkfifo("fifo", 0600) && (fifo = open("fifo", O_RDWR)) >= 0);
    put(fifo, 2, FLIGHT);

    /* socket pairs of each kind, both directions, packet borders, a descriptor in flight, one half closed */
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, stream) && !socketpair(AF_UNIX, SOCK_DGRAM, 0, datagram));
    NEED(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sequence));
    put(stream[0], 3, FLIGHT);
    put(stream[1], 4, FLIGHT);
    for (int i = 0; i < 3; i++) put(datagram[0], 10 + i, 100 * (i + 1));
    for (int i = 0; i < 3; i++) put(sequence[1], 20 + i, 77 * (i + 1));
    NEED(!shutdown(sequence[0], SHUT_WR));

    /* a listener with a name, a connection that was accepted, with data in flight, and one that waits to be accepted (which
     * CRIU carries only while nothing was written into it) */
    int listener = unix_listen("unix.sock"), client = unix_connect("unix.sock"), server = accept(listener, NULL, NULL);
    NEED(server >= 0);
    put(client, 5, FLIGHT);
    int pending = unix_connect("unix.sock");
    int nameless = unix_listen("@hotstart-zoo"), guest = unix_connect("@hotstart-zoo");
    int host = accept4(nameless, NULL, NULL, SOCK_NONBLOCK);
    NEED(host >= 0);
    put(host, 7, 10);

    /* TCP over loopback, data in both directions, options set */
    struct sockaddr_in address;
    int tcp_door = tcp_listen(&address), tcp_client = tcp_connect(&address), tcp_server = accept(tcp_door, NULL, NULL);
    int one = 1, idle = 33;
    NEED(tcp_server >= 0);
    NEED(!setsockopt(tcp_client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    NEED(!setsockopt(tcp_client, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one));
    NEED(!setsockopt(tcp_client, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle));
    put(tcp_client, 8, 100000);
    put(tcp_server, 9, 50000);

    /* UDP: the sockets, not what is queued (CRIU does not carry that) */
    struct sockaddr_in udp_address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof udp_address;
    int udp_in = socket(AF_INET, SOCK_DGRAM, 0), udp_out = socket(AF_INET, SOCK_DGRAM, 0);
    NEED(udp_in >= 0 && !bind(udp_in, (void *)&udp_address, sizeof udp_address));
    NEED(!getsockname(udp_in, (void *)&udp_address, &length));
    NEED(udp_out >= 0 && !connect(udp_out, (void *)&udp_address, sizeof udp_address));

    /* a child that blocks in read */
    pid_t child = fork();
    NEED(child >= 0);
    if (!child) {
        close(child_pipe[1]);
        get("child's pipe", child_pipe[0], 30, 5000);
        CHECK(read(child_pipe[0], page, 1) == 0, "the writer's end is closed");
        _exit(zoo_differences ? 1 : 0);
    }
    close(child_pipe[0]);
    unsigned char first[5000];
    zoo_fill(first, sizeof first, 30);
    NEED(write(child_pipe[1], first, 2500) == 2500);
    zoo_nap(50);

    zoo_ready();

    CHECK(fcntl(half[1], F_GETPIPE_SZ) >= 1 << 18, "pipe size %d", fcntl(half[1], F_GETPIPE_SZ));
    get("pipe", half[0], 1, FLIGHT);
    put(half[1], 31, 100000);
    get("pipe, afterwards", half[0], 31, 100000);
    CHECK(write(full[1], page, 1) == -1 && errno == EAGAIN, "a full pipe that does not block");
    CHECK(fcntl(full[0], F_GETFD) == FD_CLOEXEC && fcntl(half[0], F_GETFD) == 0, "close-on-exec flags");
    for (size_t i = 0; i < capacity / sizeof page; i++) get("full pipe", full[0], i, sizeof page);
    get("named pipe", fifo, 2, FLIGHT);

    get("stream pair", stream[1], 3, FLIGHT);
    get("stream pair, other direction", stream[0], 4, FLIGHT);
    both_ways("stream pair", stream[0], stream[1]);
    for (int i = 0; i < 3; i++) packet("datagram", datagram[1], 10 + i, 100 * (i + 1));
    for (int i = 0; i < 3; i++) packet("sequenced packet", sequence[0], 20 + i, 77 * (i + 1));
    CHECK(read(sequence[1], page, sizeof page) == 0, "the other half was shut down");

    get("Unix connection", server, 5, FLIGHT);
    both_ways("Unix connection", server, client);
    int late = accept(listener, NULL, NULL);
    CHECK(late >= 0, "a connection waited to be accepted: %s", strerror(errno));
    if (late >= 0) {
        put(pending, 6, 1);
        get("waiting connection", late, 6, 1);
        both_ways("waiting connection", late, pending);
    }
    int fresh = unix_connect("unix.sock"), welcomed = accept(listener, NULL, NULL);
    both_ways("fresh Unix connection", fresh, welcomed);
    get("nameless connection", guest, 7, 10);
    CHECK(read(host, page, 1) == -1 && errno == EAGAIN, "it does not block");
    put(guest, 32, 20);
    get("nameless connection, other direction", host, 32, 20);

    get("TCP", tcp_server, 8, 100000);
    get("TCP, other direction", tcp_client, 9, 50000);
    both_ways("TCP", tcp_client, tcp_server);
    int value = 0;
    length = sizeof value;
    CHECK(!getsockopt(tcp_client, IPPROTO_TCP, TCP_NODELAY, &value, &length) && value, "TCP_NODELAY is %d", value);
    CHECK(!getsockopt(tcp_client, SOL_SOCKET, SO_KEEPALIVE, &value, &length) && value, "SO_KEEPALIVE is %d", value);
    CHECK(!getsockopt(tcp_client, IPPROTO_TCP, TCP_KEEPIDLE, &value, &length) && value == 33, "TCP_KEEPIDLE is %d", value);
    CHECK(!getsockopt(tcp_client, IPPROTO_TCP, TCP_MAXSEG, &value, &length) && value > 500, "TCP_MAXSEG is %d", value);
    struct sockaddr_in peer;
    length = sizeof peer;
    CHECK(!getpeername(tcp_client, (void *)&peer, &length) && peer.sin_port == address.sin_port, "the peer's port");
    int tcp_fresh = tcp_connect(&address), tcp_welcomed = accept(tcp_door, NULL, NULL);
    both_ways("fresh TCP connection", tcp_fresh, tcp_welcomed);
    CHECK(!shutdown(tcp_server, SHUT_WR) && read(tcp_client, page, 1) == 0, "the end of a TCP stream");

    put(udp_out, 33, 1000);
    packet("UDP", udp_in, 33, 1000);

    unsigned char rest[5000];
    zoo_fill(rest, sizeof rest, 30);
    CHECK(write(child_pipe[1], rest + 2500, 2500) == 2500, "the child's pipe");
    close(child_pipe[1]);
    CHECK(zoo_wait(child) == 0, "the child");
    return zoo_done();
}
