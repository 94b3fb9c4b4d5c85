// udp_load.c: closed-loop UDP echo load generator, one thread.
//
// Opens N sockets, keeps D datagrams of S bytes outstanding on each, checks every echoed byte, and
// prints one line of key=value results, as echo_load does:
//
//   requests          datagrams that came back in the measured window
//   req_s             the same per second
//   lost              datagrams that did not come back within LOSS_NS; others take their place
//   p50_us p99_us p999_us max_us   latency
//   cli_util          share of one core that this process used
//   srv_util, srv_cpu_ns   with -P: the server's share of a core, and its CPU time a datagram
//
// Usage: udp_load [-h 127.0.0.1] [-p port] [-c sockets] [-s bytes] [-D depth] [-t seconds]
//                 [-w warmup_s] [-b] [-P server_pid]
//   -b  poll instead of sleeping in the kernel
// Exit status: 0 done, 1 the client's own trouble, 2 the server's fault, 64 usage.
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

enum { MOST_DEPTH = 64, MOST_SIZE = 2048, SOCKET_BUFFER = 1 << 20 };
enum { LOSS_NS = 200 * 1000 * 1000 };

// What each datagram begins with; the rest is a pattern that depends on it.
struct head {
  uint32_t socket;
  uint32_t slot;
  uint64_t round;
};

struct slot {
  uint64_t round;    // of the datagram that is on its way
  uint64_t sent_ns;  // 0: it has to be sent
};

struct client {
  int fd;
  struct slot slots[MOST_DEPTH];
};

static struct load_options opt = {
    .host = "127.0.0.1", .port = 7000, .conns = 64, .size = 64, .depth = 1, .secs = 3, .warm = 0.5};
static struct client* clients;
static uint64_t lost;
static char pattern[MOST_SIZE + 256];

static struct mmsghdr messages[MOST_DEPTH];
static struct iovec parts[MOST_DEPTH];
static char buffers[MOST_DEPTH][MOST_SIZE];

static void die(const char* what) {
  fprintf(stderr, "udp_load: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void fail(unsigned id, const char* what) {
  fprintf(stderr, "udp_load: socket %u: %s\n", id, what);
  exit(2);
}

uint64_t load_now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static const char* filling(const struct head* h) {
  return pattern + (h->socket * 31 + h->slot * 7 + h->round) % 256;
}

// Sends what is due on a socket.
static void send_due(unsigned id, uint64_t now) {
  struct client* c = &clients[id];
  unsigned count = 0;
  for (unsigned i = 0; i < opt.depth; i++) {
    struct slot* s = &c->slots[i];
    if (s->sent_ns) continue;
    struct head h = {.socket = id, .slot = i, .round = s->round};
    memcpy(buffers[count], &h, sizeof h);
    memcpy(buffers[count] + sizeof h, filling(&h), opt.size - sizeof h);
    parts[count].iov_len = opt.size;
    s->sent_ns = now;
    count++;
  }
  for (unsigned sent = 0; sent < count;) {
    int n = sendmmsg(c->fd, messages + sent, count - sent, 0);
    if (n < 0 && errno == ECONNREFUSED) fail(id, "the server is gone");
    if (n < 0 && errno != EINTR && errno != EAGAIN) die("sendmmsg");
    if (n > 0) sent += (unsigned)n;
  }
}

static void receive(unsigned id, uint64_t now) {
  struct client* c = &clients[id];
  for (unsigned i = 0; i < opt.depth; i++)
    parts[i].iov_len = MOST_SIZE;
  int n = recvmmsg(c->fd, messages, opt.depth, MSG_DONTWAIT, NULL);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0 && errno == ECONNREFUSED) fail(id, "the server is gone");
  if (n < 0) die("recvmmsg");
  for (int i = 0; i < n; i++) {
    struct head h;
    memcpy(&h, buffers[i], sizeof h);
    if (messages[i].msg_len != opt.size) fail(id, "a datagram of another size");
    if (h.socket != id || h.slot >= opt.depth ||
        memcmp(buffers[i] + sizeof h, filling(&h), opt.size - sizeof h) != 0)
      fail(id, "wrong bytes");
    struct slot* s = &c->slots[h.slot];
    if (h.round != s->round || !s->sent_ns) {
      if (h.round >= s->round) fail(id, "a datagram that was not sent");
      continue;  // given up on before: it is counted as lost
    }
    load_hist_add(now - s->sent_ns);
    s->sent_ns = 0;
    s->round++;
  }
}

// What has been out for too long is lost: another one takes its place.
static void give_up(uint64_t now) {
  for (unsigned id = 0; id < opt.conns; id++) {
    unsigned due = 0;
    for (unsigned i = 0; i < opt.depth; i++) {
      struct slot* s = &clients[id].slots[i];
      if (now - s->sent_ns < LOSS_NS) continue;
      lost++;
      s->sent_ns = 0;
      s->round++;
      due = 1;
    }
    if (due) send_due(id, now);
  }
}

static void open_client(unsigned id, int ep) {
  struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
  if (inet_pton(AF_INET, opt.host, &sa.sin_addr) != 1) exit(64);
  struct client* c = &clients[id];
  c->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  int size = SOCKET_BUFFER;
  if (c->fd < 0 || connect(c->fd, (struct sockaddr*)&sa, sizeof sa)) die("connect");
  setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  struct epoll_event ev = {.events = EPOLLIN, .data.u32 = id};
  if (epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &ev)) die("epoll_ctl");
}

static int parse(int argc, char** argv) {
  for (int o; (o = getopt(argc, argv, "h:p:c:s:D:t:w:bP:")) != -1;) {
    switch (o) {
      case 'h':
        opt.host = optarg;
        break;
      case 'p':
        opt.port = atoi(optarg);
        break;
      case 'c':
        opt.conns = (unsigned)strtoul(optarg, NULL, 10);
        break;
      case 's':
        opt.size = (unsigned)strtoul(optarg, NULL, 10);
        break;
      case 'D':
        opt.depth = (unsigned)strtoul(optarg, NULL, 10);
        break;
      case 't':
        opt.secs = strtod(optarg, NULL);
        break;
      case 'w':
        opt.warm = strtod(optarg, NULL);
        break;
      case 'b':
        opt.busy = 1;
        break;
      case 'P':
        opt.server_pid = atoi(optarg);
        break;
      default:
        return 0;
    }
  }
  return opt.conns >= 1 && opt.size >= sizeof(struct head) && opt.size <= MOST_SIZE &&
         opt.depth >= 1 && opt.depth <= MOST_DEPTH && opt.secs > 0;
}

int main(int argc, char** argv) {
  if (!parse(argc, argv)) {
    fprintf(stderr, "udp_load: bad usage, see the head of udp_load.c\n");
    return 64;
  }
  struct rlimit rl;
  getrlimit(RLIMIT_NOFILE, &rl);
  rl.rlim_cur = rl.rlim_max;
  setrlimit(RLIMIT_NOFILE, &rl);
  for (size_t i = 0; i < sizeof pattern; i++)
    pattern[i] = (char)(i * 167 + 13);
  for (unsigned i = 0; i < MOST_DEPTH; i++) {
    parts[i].iov_base = buffers[i];
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  clients = calloc(opt.conns, sizeof *clients);
  int ep = epoll_create1(EPOLL_CLOEXEC);
  if (!clients || ep < 0) die("start");
  uint64_t now = load_now_ns();
  for (unsigned i = 0; i < opt.conns; i++) {
    open_client(i, ep);
    send_due(i, now);
  }

  enum { BATCH = 256 };
  static struct epoll_event evs[BATCH];
  uint64_t begin = now + (uint64_t)(opt.warm * 1e9);
  uint64_t end = begin + (uint64_t)(opt.secs * 1e9);
  uint64_t looked = now, client_cpu = 0, server_cpu = 0;
  int open = 0;
  for (;;) {
    int n = epoll_wait(ep, evs, BATCH, opt.busy ? 0 : 20);
    if (n < 0 && errno != EINTR) die("epoll_wait");
    for (int i = 0; i < n; i++) {
      now = load_now_ns();
      receive(evs[i].data.u32, now);
      send_due(evs[i].data.u32, now);
    }
    now = load_now_ns();
    if (now - looked > LOSS_NS / 4) {
      give_up(now);
      looked = now;
    }
    if (!open && now >= begin) {
      open = 1;
      begin = now;
      lost = 0;
      load_hist_reset();
      client_cpu = load_self_cpu_ns();
      if (opt.server_pid) server_cpu = load_pid_cpu_ns(opt.server_pid);
    }
    if (now >= end) break;
  }

  double ns = (double)(now - begin);
  double done = (double)load_hist_count();
  printf("requests=%.0f req_s=%.0f lost=%llu p50_us=%.1f p99_us=%.1f p999_us=%.1f max_us=%.1f",
         done, done * 1e9 / ns, (unsigned long long)lost, load_hist_percentile_us(0.5),
         load_hist_percentile_us(0.99), load_hist_percentile_us(0.999), load_hist_max_us());
  printf(" cli_util=%.3f", (double)(load_self_cpu_ns() - client_cpu) / ns);
  if (opt.server_pid) {
    double server = (double)(load_pid_cpu_ns(opt.server_pid) - server_cpu);
    printf(" srv_util=%.3f srv_cpu_ns=%.1f", server / ns, done > 0 ? server / done : 0.0);
  }
  printf("\n");
  return 0;
}
