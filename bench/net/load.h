// load.h: what the parts of the echo load generator share. See echo_load.c for what it does.
#ifndef RUNLOOM_BENCH_NET_LOAD_H
#define RUNLOOM_BENCH_NET_LOAD_H

#include <stddef.h>
#include <stdint.h>

enum { LOAD_RX_SIZE = 256 * 1024 };

struct load_options {
  const char* host;
  int port;
  unsigned conns;
  unsigned size;   // bytes of one request
  unsigned depth;  // requests outstanding on each connection
  double secs;     // the measured window
  double warm;     // before the window
  int uring;       // which engine
  int busy;        // poll instead of sleeping in the kernel
  int server_pid;  // 0: the server's CPU time is not reported
};

struct load_conn {
  int fd;
  unsigned id;
  uint64_t tx_off;  // stream offset of the bytes that the kernel has taken
  uint64_t rx_off;  // stream offset of the bytes that came back and were verified
  uint64_t unsent;  // bytes due that no send has taken yet
  unsigned head;    // stamp of the oldest outstanding request
  unsigned tail;
  uint64_t rx_part;  // bytes of the oldest response that have arrived
  int want_out;      // epoll engine: EPOLLOUT is armed
  int sending;       // io_uring engine: a send is in flight
  uint64_t* stamp;   // `depth` entries
};

extern struct load_options load_opt;
extern struct load_conn* load_conns;

// Prints `what` with errno and ends the process with 1.
_Noreturn void load_die(const char* what);
// Ends the process with 2: the server broke off or answered wrongly.
_Noreturn void load_fail(const struct load_conn* c, const char* what);

uint64_t load_now_ns(void);

// The bytes that a connection has to send next: `unsent` of them.
const char* load_tx(const struct load_conn* c);
// Fills a connection's pipeline for the first time.
void load_start(struct load_conn* c);
// Takes `n` echoed bytes in: verifies them, records the requests that they finish, and makes as
// many new ones due.
void load_on_data(struct load_conn* c, const char* buf, size_t n, uint64_t now);
// Called once a batch of events; returns 1 when the run is over.
int load_tick(uint64_t now);

// The engines: drive all connections until load_tick() says that it is over.
void load_run_epoll(void);
void load_run_uring(void);
int load_have_uring(void);

// Latency histogram with buckets narrower than 1.6 %, and CPU clocks (load_stats.c).
void load_hist_reset(void);
void load_hist_add(uint64_t ns);
double load_hist_percentile_us(double q);
uint64_t load_hist_count(void);
double load_hist_max_us(void);
// CPU time of all threads of a process, user and kernel, in ns; 0 when it is gone.
uint64_t load_pid_cpu_ns(int pid);
uint64_t load_self_cpu_ns(void);

#endif
