// echo_uring.c: raw single-threaded io_uring TCP echo server, the io_uring counterpart of
// echo_epoll.c: receives and sends of one pass go to the kernel in one io_uring_enter.
//
// -m chooses how a connection is read and written:
//   multishot  multishot recv into a ring of provided 4 KiB buffers, sent from the same buffer (the
//              default; idle connections hold no buffer)
//   oneshot    one recv, then one send, on the connection's own buffer
// -k US: look for completions without sleeping for US microseconds after the last one, then sleep
//
// Usage: echo_uring -p PORT [-m mode] [-k spin_us]        Needs Linux 6.1 and liburing 2.3.
#include <arpa/inet.h>
#include <errno.h>
#include <liburing.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BUFS = 4096, BUF_SIZE = 4096, OWN_BUF_SIZE = 16384, GROUP = 1, SQ = 4096, CQ = 32768 };
enum Op { OP_ACCEPT, OP_RECV, OP_SEND, OP_MASK = 7 };  // low bits of user_data

struct conn {
  int fd;
  int dead;      // end of stream seen; freed when nothing is in flight
  int inflight;  // operations that will still post a final completion
  // Sends are kept one at a time a connection, so that bytes stay in order.
  int sending;  // the buffer being sent, -1 when none
  unsigned off;
  unsigned len;
  // Received buffers that wait for their turn: a list through next_buf.
  int queue_head;
  int queue_tail;
  char* own;  // oneshot mode
};

static int oneshot;
static int port = 7000;
static long spin_us;
static struct io_uring ring;
static struct io_uring_buf_ring* free_bufs;
static char* pool;
static int next_buf[BUFS];
static unsigned buf_len[BUFS];
static int given_back;

static void die(const char* what, int rc) {
  fprintf(stderr, "%s: %s\n", what, strerror(rc < 0 ? -rc : errno));
  exit(1);
}

static long now_us(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * 1000000L + ts.tv_nsec / 1000;
}

static struct io_uring_sqe* get_sqe(void) {
  struct io_uring_sqe* s;
  while (!(s = io_uring_get_sqe(&ring)))
    io_uring_submit(&ring);
  return s;
}

static void tag(struct io_uring_sqe* s, struct conn* c, enum Op op) {
  if (c) c->inflight++;
  io_uring_sqe_set_data64(s, (uint64_t)(uintptr_t)c | op);
}

static void put_buf(int id) {
  io_uring_buf_ring_add(free_bufs, pool + (size_t)id * BUF_SIZE, BUF_SIZE, (unsigned short)id,
                        BUFS - 1, given_back++);
}

static void arm_accept(int listener) {
  struct io_uring_sqe* s = get_sqe();
  io_uring_prep_multishot_accept(s, listener, NULL, NULL, SOCK_CLOEXEC);
  tag(s, NULL, OP_ACCEPT);
}

static void arm_recv(struct conn* c) {
  struct io_uring_sqe* s = get_sqe();
  if (oneshot) {
    io_uring_prep_recv(s, c->fd, c->own, OWN_BUF_SIZE, 0);
  } else {
    io_uring_prep_recv_multishot(s, c->fd, NULL, 0, 0);
    s->flags |= IOSQE_BUFFER_SELECT;
    s->buf_group = GROUP;
  }
  tag(s, c, OP_RECV);
}

static void submit_send(struct conn* c, const char* buf) {
  struct io_uring_sqe* s = get_sqe();
  io_uring_prep_send(s, c->fd, buf + c->off, c->len - c->off, MSG_NOSIGNAL);
  tag(s, c, OP_SEND);
}

static void start_send(struct conn* c, int id) {
  c->sending = id;
  c->off = 0;
  c->len = buf_len[id];
  submit_send(c, pool + (size_t)id * BUF_SIZE);
}

static int pop_queued(struct conn* c) {
  int id = c->queue_head;
  if (id >= 0) c->queue_head = next_buf[id];
  return id;
}

static void maybe_free(struct conn* c) {
  if (!c->dead || c->inflight) return;
  for (int id; (id = pop_queued(c)) >= 0;)
    put_buf(id);
  close(c->fd);
  free(c->own);
  free(c);
}

static void on_own_recv(struct conn* c, int res) {
  if (res <= 0) {
    c->dead = 1;
    return;
  }
  c->off = 0;
  c->len = (unsigned)res;
  submit_send(c, c->own);
}

static void on_recv(struct conn* c, int res, unsigned flags) {
  if (res > 0) {
    int id = (int)(flags >> IORING_CQE_BUFFER_SHIFT);
    buf_len[id] = (unsigned)res;
    next_buf[id] = -1;
    if (c->sending < 0) {
      start_send(c, id);
    } else if (c->queue_head < 0) {
      c->queue_head = c->queue_tail = id;
    } else {
      next_buf[c->queue_tail] = id;
      c->queue_tail = id;
    }
  } else if (res != -ENOBUFS) {
    c->dead = 1;
  }
  if (!(flags & IORING_CQE_F_MORE) && !c->dead) arm_recv(c);
}

static void on_send(struct conn* c, int res) {
  if (res >= 0 && (c->off += (unsigned)res) < c->len) {
    submit_send(c, oneshot ? c->own : pool + (size_t)c->sending * BUF_SIZE);
    return;
  }
  if (res < 0) c->dead = 1;  // an armed recv ends by itself: the socket is broken
  if (oneshot) {
    if (!c->dead) arm_recv(c);
    return;
  }
  put_buf(c->sending);
  c->sending = -1;
  if (c->dead) return;
  int id = pop_queued(c);
  if (id >= 0) start_send(c, id);
}

static void on_accept(int listener, int res, unsigned flags) {
  if (res >= 0) {
    struct conn* c = calloc(1, sizeof *c);
    if (!c) die("calloc", 0);
    c->fd = res;
    c->sending = c->queue_head = c->queue_tail = -1;
    if (oneshot && !(c->own = malloc(OWN_BUF_SIZE))) die("malloc", 0);
    arm_recv(c);
  }
  if (!(flags & IORING_CQE_F_MORE)) arm_accept(listener);
}

static void on_completion(int listener, const struct io_uring_cqe* cqe) {
  struct conn* c = (struct conn*)(uintptr_t)(cqe->user_data & ~(uint64_t)OP_MASK);
  enum Op op = (enum Op)(cqe->user_data & OP_MASK);
  if (op == OP_ACCEPT) {
    on_accept(listener, cqe->res, cqe->flags);
    return;
  }
  if (!(cqe->flags & IORING_CQE_F_MORE)) c->inflight--;
  if (op == OP_SEND) {
    on_send(c, cqe->res);
  } else if (oneshot) {
    on_own_recv(c, cqe->res);
  } else {
    on_recv(c, cqe->res, cqe->flags);
  }
  maybe_free(c);
}

static int listen_on(int at_port) {
  int one = 1;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in sa = {.sin_family = AF_INET,
                           .sin_port = htons((unsigned short)at_port),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (listener < 0) die("socket", 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);  // accepted sockets inherit it
  if (bind(listener, (struct sockaddr*)&sa, sizeof sa) || listen(listener, 4096)) die("listen", 0);
  return listener;
}

static void set_up_ring(void) {
  struct io_uring_params p = {
      .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
      .cq_entries = CQ};
  int rc = io_uring_queue_init_params(SQ, &ring, &p);
  if (rc) die("io_uring_queue_init_params", rc);
  if (posix_memalign((void**)&free_bufs, 4096, BUFS * sizeof(struct io_uring_buf))) {
    die("posix_memalign", 0);
  }
  struct io_uring_buf_reg reg = {
      .ring_addr = (uintptr_t)free_bufs, .ring_entries = BUFS, .bgid = GROUP};
  rc = io_uring_register_buf_ring(&ring, &reg, 0);
  if (rc) die("io_uring_register_buf_ring", rc);
  io_uring_buf_ring_init(free_bufs);
  pool = malloc((size_t)BUFS * BUF_SIZE);
  if (!pool) die("malloc", 0);
  for (int i = 0; i < BUFS; i++)
    put_buf(i);
  io_uring_buf_ring_advance(free_bufs, given_back);
  given_back = 0;
}

int main(int argc, char** argv) {
  for (int o; (o = getopt(argc, argv, "p:m:k:")) != -1;) {
    if (o == 'p') {
      port = atoi(optarg);
    } else if (o == 'k') {
      spin_us = atol(optarg);
    } else if (o == 'm' && (!strcmp(optarg, "oneshot") || !strcmp(optarg, "multishot"))) {
      oneshot = !strcmp(optarg, "oneshot");
    } else {
      fprintf(stderr, "echo_uring: bad usage, see the head of echo_uring.c\n");
      return 64;
    }
  }
  struct rlimit rl;
  getrlimit(RLIMIT_NOFILE, &rl);
  rl.rlim_cur = rl.rlim_max;
  setrlimit(RLIMIT_NOFILE, &rl);

  int listener = listen_on(port);
  set_up_ring();
  arm_accept(listener);
  long last_us = 0;
  for (;;) {
    int rc = spin_us && now_us() - last_us < spin_us ? io_uring_submit_and_get_events(&ring)
                                                     : io_uring_submit_and_wait(&ring, 1);
    if (rc < 0 && rc != -EINTR && rc != -EBUSY) die("io_uring_submit_and_wait", rc);
    struct io_uring_cqe* cqe;
    unsigned head;
    unsigned seen = 0;
    io_uring_for_each_cqe(&ring, head, cqe) {
      seen++;
      on_completion(listener, cqe);
    }
    if (given_back) io_uring_buf_ring_advance(free_bufs, given_back);
    given_back = 0;
    io_uring_cq_advance(&ring, seen);
    if (spin_us && seen) last_us = now_us();
  }
}
