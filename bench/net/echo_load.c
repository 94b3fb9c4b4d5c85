// echo_load.c: closed-loop TCP echo load generator, one thread.
//
// Opens N connections, keeps D requests of S bytes outstanding on each, checks every echoed byte,
// and prints one line of key=value results:
//
//   requests          completed in the measured window
//   req_s             requests per second
//   p50_us p99_us p999_us max_us   latency
//   cli_util          share of one core that this process used (1.00 = the client is the
//                     bottleneck, so req_s says little about the server)
//   srv_util, srv_cpu_ns   with -P: the server's share of a core, and its CPU time a request (all
//                     threads, user and kernel, from schedstat): the number to compare when the
//                     client saturates
//
// Usage: echo_load [-h 127.0.0.1] [-p port] [-c conns] [-s bytes] [-D depth] [-t seconds]
//                  [-w warmup_s] [-e epoll|uring] [-b] [-P server_pid]
//   -e  the engine; io_uring falls back to epoll where it is not to be had
//   -b  poll instead of sleeping in the kernel: takes the client's own wake-up out of the latency
//       (use with few connections)
// Exit status: 0 done, 1 the client's own trouble, 2 the server's fault, 64 usage.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

// Every connection sends one endless stream with this period (a prime, so that a lost or repeated
// block of a usual size shows), starting at its own phase.
enum { PERIOD = 251 };

struct load_options load_opt = {
    .host = "127.0.0.1", .port = 7000, .conns = 64, .size = 64, .depth = 1, .secs = 3, .warm = 0.5};
struct load_conn* load_conns;

static char* pattern;  // long enough for any send or receive at any phase

// The measured window.
static struct {
  int open;
  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t server_cpu_ns;
  uint64_t client_cpu_ns;
} window;

void load_die(const char* what) {
  fprintf(stderr, "echo_load: %s: %s\n", what, strerror(errno));
  exit(1);
}

void load_fail(const struct load_conn* c, const char* what) {
  fprintf(stderr, "echo_load: connection %u, after %llu echoed bytes: %s\n", c->id,
          (unsigned long long)c->rx_off, what);
  exit(2);
}

uint64_t load_now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static const char* pattern_at(const struct load_conn* c, uint64_t offset) {
  return pattern + (offset + c->id) % PERIOD;
}

const char* load_tx(const struct load_conn* c) {
  return pattern_at(c, c->tx_off);
}

static void issue(struct load_conn* c, unsigned n, uint64_t now) {
  for (; n; n--) {
    c->stamp[c->tail] = now;
    c->tail = c->tail + 1 == load_opt.depth ? 0 : c->tail + 1;
    c->unsent += load_opt.size;
  }
}

void load_start(struct load_conn* c) {
  issue(c, load_opt.depth, load_now_ns());
}

void load_on_data(struct load_conn* c, const char* buf, size_t n, uint64_t now) {
  if (memcmp(buf, pattern_at(c, c->rx_off), n) != 0) load_fail(c, "wrong bytes");
  c->rx_off += n;
  uint64_t have = c->rx_part + n;
  unsigned finished = 0;
  for (; have >= load_opt.size; have -= load_opt.size, finished++) {
    load_hist_add(now - c->stamp[c->head]);
    c->head = c->head + 1 == load_opt.depth ? 0 : c->head + 1;
  }
  c->rx_part = have;
  issue(c, finished, now);
}

int load_tick(uint64_t now) {
  if (!window.open && now >= window.start_ns) {
    window.open = 1;
    load_hist_reset();
    window.server_cpu_ns = load_opt.server_pid ? load_pid_cpu_ns(load_opt.server_pid) : 0;
    window.client_cpu_ns = load_self_cpu_ns();
    window.start_ns = load_now_ns();
    window.end_ns = window.start_ns + (uint64_t)(load_opt.secs * 1e9);
  }
  return window.open && now >= window.end_ns;
}

static void report(void) {
  double ns = (double)(load_now_ns() - window.start_ns);
  double client = (double)(load_self_cpu_ns() - window.client_cpu_ns);
  double done = (double)load_hist_count();
  printf("requests=%.0f req_s=%.0f p50_us=%.2f p99_us=%.2f p999_us=%.2f max_us=%.1f cli_util=%.3f",
         done, done / ns * 1e9, load_hist_percentile_us(0.50), load_hist_percentile_us(0.99),
         load_hist_percentile_us(0.999), load_hist_max_us(), client / ns);
  if (load_opt.server_pid) {
    double server = (double)(load_pid_cpu_ns(load_opt.server_pid) - window.server_cpu_ns);
    printf(" srv_util=%.3f srv_cpu_ns=%.1f", server / ns, done > 0 ? server / done : 0.0);
  }
  printf("\n");
}

static void open_conn(struct load_conn* c, unsigned id) {
  struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)load_opt.port)};
  if (inet_pton(AF_INET, load_opt.host, &sa.sin_addr) != 1) exit(64);
  c->id = id;
  c->stamp = calloc(load_opt.depth, sizeof *c->stamp);
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (!c->stamp || c->fd < 0) load_die("socket");
  if (connect(c->fd, (struct sockaddr*)&sa, sizeof sa)) load_die("connect");
  int one = 1;
  struct linger reset = {.l_onoff = 1, .l_linger = 0};  // leaves no TIME_WAIT behind
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

static void make_pattern(void) {
  size_t need = (size_t)load_opt.size * load_opt.depth;
  if (need < LOAD_RX_SIZE) need = LOAD_RX_SIZE;
  need += PERIOD;
  pattern = malloc(need);
  if (!pattern) load_die("malloc");
  for (size_t i = 0; i < need; i++)
    pattern[i] = (char)(i % PERIOD * 167 + 13);
}

static int parse(int argc, char** argv) {
  for (int o; (o = getopt(argc, argv, "h:p:c:s:D:t:w:e:bP:")) != -1;) {
    switch (o) {
      case 'h':
        load_opt.host = optarg;
        break;
      case 'p':
        load_opt.port = atoi(optarg);
        break;
      case 'c':
        load_opt.conns = (unsigned)strtoul(optarg, NULL, 10);
        break;
      case 's':
        load_opt.size = (unsigned)strtoul(optarg, NULL, 10);
        break;
      case 'D':
        load_opt.depth = (unsigned)strtoul(optarg, NULL, 10);
        break;
      case 't':
        load_opt.secs = strtod(optarg, NULL);
        break;
      case 'w':
        load_opt.warm = strtod(optarg, NULL);
        break;
      case 'e':
        load_opt.uring = !strcmp(optarg, "uring");
        if (!load_opt.uring && strcmp(optarg, "epoll") != 0) return 0;
        break;
      case 'b':
        load_opt.busy = 1;
        break;
      case 'P':
        load_opt.server_pid = atoi(optarg);
        break;
      default:
        return 0;
    }
  }
  return load_opt.conns >= 1 && load_opt.size >= 1 && load_opt.depth >= 1 && load_opt.secs > 0;
}

int main(int argc, char** argv) {
  if (!parse(argc, argv)) {
    fprintf(stderr, "echo_load: bad usage, see the head of echo_load.c\n");
    return 64;
  }
  struct rlimit rl;
  getrlimit(RLIMIT_NOFILE, &rl);
  rl.rlim_cur = rl.rlim_max;
  setrlimit(RLIMIT_NOFILE, &rl);

  make_pattern();
  load_conns = calloc(load_opt.conns, sizeof *load_conns);
  if (!load_conns) load_die("calloc");
  for (unsigned i = 0; i < load_opt.conns; i++)
    open_conn(&load_conns[i], i);
  window.start_ns = load_now_ns() + (uint64_t)(load_opt.warm * 1e9);
  if (load_opt.uring && load_have_uring()) {
    load_run_uring();
  } else {
    load_run_epoll();
  }
  report();
  return 0;
}
