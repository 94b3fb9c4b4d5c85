// load_stats.c: the latency histogram and the CPU clocks of the echo load generator.
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "load.h"

// A bucket's width is 1/64 of its power of two: linear up to 64 ns, logarithmic above.
enum { SUB_BITS = 6, SUB = 1 << SUB_BITS, BUCKETS = 64 * SUB };

static uint64_t hist[BUCKETS];
static uint64_t total;
static uint64_t max_ns;

static unsigned bucket(uint64_t v) {
  if (v < SUB) return (unsigned)v;
  unsigned e = 63u - (unsigned)__builtin_clzll(v);
  return (e - SUB_BITS + 1) * SUB + (unsigned)((v >> (e - SUB_BITS)) & (SUB - 1));
}

static double bucket_mid(unsigned b) {
  if (b < SUB) return b;
  unsigned e = b / SUB + SUB_BITS - 1;
  double low = (double)(((uint64_t)SUB + b % SUB) << (e - SUB_BITS));
  return low + 0.5 * (double)(1ull << (e - SUB_BITS));
}

void load_hist_reset(void) {
  memset(hist, 0, sizeof hist);
  total = max_ns = 0;
}

void load_hist_add(uint64_t ns) {
  hist[bucket(ns)]++;
  total++;
  if (ns > max_ns) max_ns = ns;
}

double load_hist_percentile_us(double q) {
  uint64_t want = (uint64_t)(q * (double)total);
  uint64_t seen = 0;
  for (unsigned i = 0; i < BUCKETS; i++) {
    seen += hist[i];
    if (seen > want) return bucket_mid(i) / 1000.0;
  }
  return load_hist_max_us();
}

uint64_t load_hist_count(void) {
  return total;
}

double load_hist_max_us(void) {
  return (double)max_ns / 1000.0;
}

uint64_t load_pid_cpu_ns(int pid) {
  char path[300];
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR* dir = opendir(path);
  if (!dir) return 0;
  uint64_t sum = 0;
  for (struct dirent* e; (e = readdir(dir));) {
    if (e->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", pid, e->d_name);
    FILE* f = fopen(path, "r");
    if (!f) continue;
    unsigned long long ns;
    if (fscanf(f, "%llu", &ns) == 1) sum += ns;
    fclose(f);
  }
  closedir(dir);
  return sum;
}

uint64_t load_self_cpu_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
