// load_epoll.c: the engine with one recv and one send system call an event. Its latencies are the
// most accurate ones.
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "load.h"

static void flush(int ep, struct load_conn* c) {
  while (c->unsent) {
    ssize_t n = send(c->fd, load_tx(c), c->unsent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) load_die("send");
      break;
    }
    c->tx_off += (uint64_t)n;
    c->unsent -= (uint64_t)n;
  }
  int want = c->unsent != 0;
  if (want == c->want_out) return;
  struct epoll_event ev = {.events = EPOLLIN | (want ? EPOLLOUT : 0u), .data.ptr = c};
  if (epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &ev)) load_die("epoll_ctl");
  c->want_out = want;
}

static void receive(struct load_conn* c, char* rx) {
  ssize_t n = recv(c->fd, rx, LOAD_RX_SIZE, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) load_fail(c, "the server closed the connection");
  load_on_data(c, rx, (size_t)n, load_now_ns());
}

void load_run_epoll(void) {
  enum { BATCH = 512 };
  static struct epoll_event evs[BATCH];
  int ep = epoll_create1(EPOLL_CLOEXEC);
  char* rx = malloc(LOAD_RX_SIZE);
  if (ep < 0 || !rx) load_die("epoll_create1");
  for (unsigned i = 0; i < load_opt.conns; i++) {
    struct load_conn* c = &load_conns[i];
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &ev)) load_die("epoll_ctl");
    load_start(c);
    flush(ep, c);
  }
  for (;;) {
    int n = epoll_wait(ep, evs, BATCH, load_opt.busy ? 0 : 20);
    if (n < 0 && errno != EINTR) load_die("epoll_wait");
    for (int i = 0; i < n; i++) {
      struct load_conn* c = evs[i].data.ptr;
      if (evs[i].events & ~(unsigned)EPOLLOUT) receive(c, rx);
      flush(ep, c);
    }
    if (load_tick(load_now_ns())) break;
  }
  free(rx);
}
