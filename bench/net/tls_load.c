// Drives a TLS server with blocking OpenSSL clients, one after the other or all in turn, and prints
// what echo_load prints: requests=N req_s=N srv_cpu_ns=N p50_us=N p99_us=N p999_us=N.
//
//     tls_load -p PORT -m echo|handshake|resume [-c CONNECTIONS] [-s BYTES] [-t SECONDS] [-w
//     SECONDS]
//              [-P SERVER_PID] [-2]
//
// A request is an echo of BYTES, or a whole connection (TCP, handshake, a line of one letter there
// and back, which `openssl s_server -rev` answers, too, and goodbye) for the other two. -2:
// TLS 1.2. The server is not verified.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_SAMPLES = 1 << 20, MOST_CONNECTIONS = 4096, PIECE = 65536 };

static int port;
static SSL_CTX* context;
static SSL_SESSION* session;  // the newest that a server gave
static double samples[MOST_SAMPLES];
static long sample_count;

static void die(const char* what) {
  fprintf(stderr, "tls_load: %s: ", what);
  if (ERR_peek_error()) {
    ERR_print_errors_fp(stderr);
  } else {
    fprintf(stderr, "%s\n", strerror(errno));
  }
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Seconds of processor time of a process.
static double cpu_of(long pid) {
  clockid_t clock;
  struct timespec t;
  if (pid == 0 || clock_getcpuclockid((pid_t)pid, &clock) != 0) return 0;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int keep(SSL* ssl, SSL_SESSION* fresh) {
  (void)ssl;
  SSL_SESSION_free(session);
  session = fresh;
  return 1;
}

static SSL* connect_tls(int resume) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof address) != 0) die("connect");
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  SSL* const ssl = SSL_new(context);
  SSL_set_fd(ssl, fd);
  SSL_set_tlsext_host_name(ssl, "localhost");
  if (resume && session) SSL_set_session(ssl, session);
  if (SSL_connect(ssl) != 1) die("handshake");
  return ssl;
}

static void disconnect(SSL* ssl) {
  const int fd = SSL_get_fd(ssl);
  SSL_shutdown(ssl);
  SSL_free(ssl);
  close(fd);
}

static char out[PIECE] = "x\n";

// There and back, in pieces that the buffers on the way have room for.
static void echo(SSL* ssl, size_t size) {
  static char in[PIECE];
  while (size > 0) {
    const size_t piece = size < PIECE ? size : PIECE;
    if (SSL_write(ssl, out, (int)piece) != (int)piece) die("write");
    for (size_t got = 0; got < piece;) {
      const int count = SSL_read(ssl, in, (int)(piece - got));
      if (count <= 0) die("read");
      got += (size_t)count;
    }
    size -= piece;
  }
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a;
  const double y = *(const double*)b;
  return (x > y) - (x < y);
}

static double percentile(double part) {
  if (sample_count == 0) return 0;
  return samples[(long)(part * (double)(sample_count - 1))] * 1e6;
}

int main(int argc, char** argv) {
  const char* mode = "echo";
  int connections = 1;
  int old = 0;
  size_t size = 64;
  double seconds = 1;
  double warm_up = 0.1;
  long pid = 0;
  for (int option; (option = getopt(argc, argv, "p:m:c:s:t:w:P:2")) != -1;) {
    switch (option) {
      case 'p':
        port = atoi(optarg);
        break;
      case 'm':
        mode = optarg;
        break;
      case 'c':
        connections = atoi(optarg);
        break;
      case 's':
        size = strtoul(optarg, NULL, 10);
        break;
      case 't':
        seconds = atof(optarg);
        break;
      case 'w':
        warm_up = atof(optarg);
        break;
      case 'P':
        pid = atol(optarg);
        break;
      case '2':
        old = 1;
        break;
      default:
        return 2;
    }
  }
  if (connections < 1 || connections > MOST_CONNECTIONS) return 2;
  const int echoes = strcmp(mode, "echo") == 0;
  const int resumes = strcmp(mode, "resume") == 0;
  context = SSL_CTX_new(TLS_client_method());
  if (old) SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
  SSL_CTX_sess_set_new_cb(context, &keep);

  static SSL* open[MOST_CONNECTIONS];
  for (int i = 0; echoes && i < connections; ++i)
    open[i] = connect_tls(0);
  long requests = 0;
  long resumed = 0;
  double cpu = 0;
  double begin = now();
  const double measured = begin + warm_up;
  int warm = 0;
  for (int turn = 0;; turn = (turn + 1) % connections) {
    const double before = now();
    if (!warm && before >= measured) {
      warm = 1;
      begin = before;
      cpu = cpu_of(pid);
      requests = resumed = sample_count = 0;
    }
    if (warm && before >= begin + seconds) break;
    if (echoes) {
      echo(open[turn], size);
    } else {
      SSL* const ssl = connect_tls(resumes);
      echo(ssl, 2);
      resumed += SSL_session_reused(ssl);
      disconnect(ssl);
    }
    ++requests;
    if (sample_count < MOST_SAMPLES) samples[sample_count++] = now() - before;
  }
  const double took = now() - begin;
  const double used = cpu_of(pid) - cpu;
  for (int i = 0; echoes && i < connections; ++i)
    disconnect(open[i]);
  if (resumes && resumed < requests - 1) {
    fprintf(stderr, "tls_load: %ld of %ld connections were resumed\n", resumed, requests);
    return 1;
  }
  qsort(samples, (size_t)sample_count, sizeof *samples, &compare);
  printf("requests=%ld req_s=%.1f srv_cpu_ns=%.0f p50_us=%.1f p99_us=%.1f p999_us=%.1f\n", requests,
         (double)requests / took, requests ? used * 1e9 / (double)requests : 0, percentile(0.5),
         percentile(0.99), percentile(0.999));
  return 0;
}
