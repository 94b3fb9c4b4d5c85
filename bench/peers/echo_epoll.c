// echo_epoll.c: raw single-threaded epoll TCP echo server. It is the reference that the other
// servers' results are divided by: one recv and one send a message, no fibers, no allocation a
// message, no scheduling in user space.
//
// -m chooses what a wait for readability costs:
//   lt              registered once, level-triggered (the default, and the reference)
//   et              registered once, edge-triggered; a short recv means "drained"
//   et-eagain       registered once, edge-triggered; recv until EAGAIN: what a fiber loop does that
//                   tries recv first and parks on EAGAIN
//   oneshot         EPOLLONESHOT; one epoll_ctl(MOD) to re-arm after each message
//   oneshot-eagain  the same, after a recv that returned EAGAIN (try, arm, park)
//   adddel          epoll_ctl(ADD) before and epoll_ctl(DEL) after each wait
//
// Usage: echo_epoll -p PORT [-m mode] [-k spin_us] [-b recv_buffer_bytes] [-n events_per_wait]
//   -k  poll without sleeping for this long after the last event, then sleep
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum Mode { LT, ET, ET_EAGAIN, ONESHOT, ONESHOT_EAGAIN, ADDDEL, MODES };
static const char* const mode_names[MODES] = {
    "lt", "et", "et-eagain", "oneshot", "oneshot-eagain", "adddel"};

struct conn {
  int fd;
  size_t len;   // bytes of `stash` still to be sent: the client reads too slowly
  char* stash;  // allocated when first needed
};

static enum Mode mode = LT;
static int port = 7000;
static int max_events = 256;
static long spin_us;
static size_t rx_size = 16384;
static char* rx;
static int ep;

static void die(const char* what) {
  perror(what);
  exit(1);
}

static long now_us(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1000000L + ts.tv_nsec / 1000;
}

static void arm(int op, struct conn* c) {
  unsigned events = c->len ? EPOLLOUT : EPOLLIN | EPOLLRDHUP;
  if (mode == ET || mode == ET_EAGAIN) events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  if (mode == ONESHOT || mode == ONESHOT_EAGAIN) events |= EPOLLONESHOT;
  struct epoll_event ev = {.events = events, .data.ptr = c};
  if (epoll_ctl(ep, op, c->fd, &ev)) die("epoll_ctl");
}

static void drop(struct conn* c) {
  close(c->fd);
  free(c->stash);
  free(c);
}

// Sends what it can and stashes the rest. Returns -1 when the connection is dead.
static int send_all(struct conn* c, const char* buf, size_t n) {
  while (n) {
    ssize_t sent = send(c->fd, buf, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return -1;
      if (!c->stash && !(c->stash = malloc(rx_size))) return -1;
      memmove(c->stash, buf, n);
      c->len = n;
      return 0;
    }
    buf += sent;
    n -= (size_t)sent;
  }
  return 0;
}

// Handles one readiness event. Returns -1 when the connection is dead.
static int serve(struct conn* c) {
  if (c->len) {
    size_t n = c->len;
    c->len = 0;
    if (send_all(c, c->stash, n)) return -1;
    if (c->len) return 0;
    if (mode == LT) arm(EPOLL_CTL_MOD, c);
  }
  for (;;) {
    ssize_t n = recv(c->fd, rx, rx_size, MSG_DONTWAIT);
    if (n == 0) return -1;
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? 0 : -1;
    }
    if (send_all(c, rx, (size_t)n)) return -1;
    if (c->len) {
      if (mode == LT) arm(EPOLL_CTL_MOD, c);
      return 0;
    }
    if (mode == LT || mode == ONESHOT || mode == ADDDEL) return 0;
    if (mode == ET && (size_t)n < rx_size) return 0;
  }
}

static void accept_all(int listener) {
  int fd;
  int one = 1;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct conn* c = calloc(1, sizeof *c);
    if (!c) die("calloc");
    c->fd = fd;
    arm(EPOLL_CTL_ADD, c);
  }
}

static void on_event(struct conn* c) {
  if (mode == ADDDEL) epoll_ctl(ep, EPOLL_CTL_DEL, c->fd, NULL);
  if (serve(c)) {
    drop(c);
  } else if (mode == ONESHOT || mode == ONESHOT_EAGAIN) {
    arm(EPOLL_CTL_MOD, c);
  } else if (mode == ADDDEL) {
    arm(EPOLL_CTL_ADD, c);
  }
}

static int parse(int argc, char** argv) {
  for (int o; (o = getopt(argc, argv, "p:m:b:n:k:")) != -1;) {
    switch (o) {
      case 'p':
        port = atoi(optarg);
        break;
      case 'b':
        rx_size = strtoul(optarg, NULL, 0);
        break;
      case 'k':
        spin_us = atol(optarg);
        break;
      case 'n':
        max_events = atoi(optarg);
        break;
      case 'm':
        for (mode = LT; mode < MODES && strcmp(optarg, mode_names[mode]) != 0;)
          mode++;
        if (mode == MODES) return 0;
        break;
      default:
        return 0;
    }
  }
  return max_events > 0 && rx_size > 0;
}

int main(int argc, char** argv) {
  if (!parse(argc, argv)) {
    fprintf(stderr, "echo_epoll: bad usage, see the head of echo_epoll.c\n");
    return 64;
  }
  struct rlimit rl;
  getrlimit(RLIMIT_NOFILE, &rl);
  rl.rlim_cur = rl.rlim_max;
  setrlimit(RLIMIT_NOFILE, &rl);

  int one = 1;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_in sa = {.sin_family = AF_INET,
                           .sin_port = htons((unsigned short)port),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (listener < 0) die("socket");
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (struct sockaddr*)&sa, sizeof sa) || listen(listener, 4096)) die("listen");

  ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event listening = {.events = EPOLLIN, .data.ptr = NULL};
  struct epoll_event* events = calloc((size_t)max_events, sizeof *events);
  rx = malloc(rx_size);
  if (ep < 0 || !events || !rx || epoll_ctl(ep, EPOLL_CTL_ADD, listener, &listening)) die("epoll");

  long last_us = 0;
  for (;;) {
    int n = epoll_wait(ep, events, max_events, spin_us && now_us() - last_us < spin_us ? 0 : -1);
    if (n < 0 && errno != EINTR) die("epoll_wait");
    if (spin_us && n > 0) last_us = now_us();
    for (int i = 0; i < n; i++) {
      struct conn* c = events[i].data.ptr;
      if (c) {
        on_event(c);
      } else {
        accept_all(listener);
      }
    }
  }
}
