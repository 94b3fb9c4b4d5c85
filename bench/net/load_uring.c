// load_uring.c: the engine with multishot receives and batched sends. A third cheaper a request
// than the epoll engine, for servers that outrun that one. Built where liburing is installed.
#include "load.h"

#ifndef HAVE_LIBURING

int load_have_uring(void) {
  return 0;
}
void load_run_uring(void) {}

#else

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BUFS = 4096, BUF_SIZE = 4096, GROUP = 1, SQ_ENTRIES = 4096, CQ_ENTRIES = 16384 };

static struct io_uring ring;
static struct io_uring_buf_ring* free_bufs;
static char* pool;

static void check(int rc, const char* what) {
  if (rc >= 0) return;
  errno = -rc;
  load_die(what);
}

static struct io_uring_sqe* get_sqe(void) {
  struct io_uring_sqe* s;
  while (!(s = io_uring_get_sqe(&ring)))
    io_uring_submit(&ring);
  return s;
}

// user_data: the connection's number, and whether it is a send.
static void tag(struct io_uring_sqe* s, const struct load_conn* c, unsigned is_send) {
  io_uring_sqe_set_data64(s, (uint64_t)c->id << 1 | is_send);
}

static void receive(const struct load_conn* c) {
  struct io_uring_sqe* s = get_sqe();
  io_uring_prep_recv_multishot(s, c->fd, NULL, 0, 0);
  s->flags |= IOSQE_BUFFER_SELECT;
  s->buf_group = GROUP;
  tag(s, c, 0);
}

static void flush(struct load_conn* c) {
  if (c->sending || !c->unsent) return;
  struct io_uring_sqe* s = get_sqe();
  io_uring_prep_send(s, c->fd, load_tx(c), c->unsent, MSG_NOSIGNAL);
  tag(s, c, 1);
  c->sending = 1;
}

static void put_buf(unsigned short id, int offset) {
  io_uring_buf_ring_add(free_bufs, pool + (size_t)id * BUF_SIZE, BUF_SIZE, id,
                        io_uring_buf_ring_mask(BUFS), offset);
}

static int set_up(struct io_uring* r) {
  struct io_uring_params p = {
      .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
      .cq_entries = CQ_ENTRIES};
  return io_uring_queue_init_params(SQ_ENTRIES, r, &p);
}

int load_have_uring(void) {
  struct io_uring probe;
  if (set_up(&probe)) return 0;
  io_uring_queue_exit(&probe);
  return 1;
}

static void set_up_buffers(void) {
  if (posix_memalign((void**)&free_bufs, 4096, BUFS * sizeof(struct io_uring_buf))) {
    load_die("posix_memalign");
  }
  struct io_uring_buf_reg reg = {
      .ring_addr = (uintptr_t)free_bufs, .ring_entries = BUFS, .bgid = GROUP};
  check(io_uring_register_buf_ring(&ring, &reg, 0), "io_uring_register_buf_ring");
  io_uring_buf_ring_init(free_bufs);
  pool = malloc((size_t)BUFS * BUF_SIZE);
  if (!pool) load_die("malloc");
  for (int i = 0; i < BUFS; i++)
    put_buf((unsigned short)i, i);
  io_uring_buf_ring_advance(free_bufs, BUFS);
}

static void on_send(struct load_conn* c, int res) {
  c->sending = 0;
  check(res, "send");
  c->tx_off += (uint64_t)res;
  c->unsent -= (uint64_t)res;
}

// Returns the number of buffers that were given back: 0 or 1, `given` before this call.
static int on_receive(struct load_conn* c, const struct io_uring_cqe* cqe, uint64_t now,
                      int given) {
  int back = 0;
  // -ENOBUFS: all provided buffers are in this very batch of completions.
  if (cqe->res == 0 || (cqe->res < 0 && cqe->res != -ENOBUFS)) {
    load_fail(c, "the server closed the connection");
  }
  if (cqe->res > 0) {
    unsigned short id = (unsigned short)(cqe->flags >> IORING_CQE_BUFFER_SHIFT);
    load_on_data(c, pool + (size_t)id * BUF_SIZE, (size_t)cqe->res, now);
    put_buf(id, given);
    back = 1;
  }
  if (!(cqe->flags & IORING_CQE_F_MORE)) receive(c);
  return back;
}

void load_run_uring(void) {
  check(set_up(&ring), "io_uring_queue_init_params");
  set_up_buffers();
  for (unsigned i = 0; i < load_opt.conns; i++) {
    receive(&load_conns[i]);
    load_start(&load_conns[i]);
    flush(&load_conns[i]);
  }
  for (;;) {
    struct __kernel_timespec timeout = {.tv_nsec = 20000000};
    struct io_uring_cqe* cqe;
    if (load_opt.busy) {
      io_uring_submit_and_get_events(&ring);
    } else {
      io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &timeout, NULL);
    }
    uint64_t now = load_now_ns();
    unsigned head;
    unsigned seen = 0;
    int given = 0;
    io_uring_for_each_cqe(&ring, head, cqe) {
      seen++;
      struct load_conn* c = &load_conns[cqe->user_data >> 1];
      if (cqe->user_data & 1) {
        on_send(c, cqe->res);
      } else {
        given += on_receive(c, cqe, now, given);
      }
      flush(c);
    }
    io_uring_buf_ring_advance(free_bufs, given);
    io_uring_cq_advance(&ring, seen);
    if (load_tick(now)) return;
  }
}

#endif
