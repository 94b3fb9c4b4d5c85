// calib.c: how fast are these cores right now? Prints, for each CPU named on the command line, the
// CPU time of one getppid() in ns, measured on all of them at once for about 15 ms.
//
// On a virtual machine the figure moves by a third while a neighbour uses the physical core; the
// harness marks the samples that were taken while it was high.
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CPUS = 64, CALLS = 80000 };

struct probe {
  int cpu;
  double ns;
};

static uint64_t thread_cpu_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void* run(void* arg) {
  struct probe* p = arg;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)p->cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  uint64_t start = thread_cpu_ns();
  for (int i = 0; i < CALLS; i++)
    syscall(SYS_getppid);
  p->ns = (double)(thread_cpu_ns() - start) / CALLS;
  return NULL;
}

int main(int argc, char** argv) {
  pthread_t threads[MAX_CPUS];
  struct probe probes[MAX_CPUS];
  int n = argc - 1 < MAX_CPUS ? argc - 1 : MAX_CPUS;
  for (int i = 0; i < n; i++) {
    probes[i] = (struct probe){.cpu = atoi(argv[i + 1])};
    if (pthread_create(&threads[i], NULL, run, &probes[i])) return 1;
  }
  for (int i = 0; i < n; i++) {
    pthread_join(threads[i], NULL);
    printf("%.1f ", probes[i].ns);
  }
  printf("\n");
  return 0;
}
