// echo_udp.c: a UDP echo server that is nothing but recvmmsg and sendmmsg. It is the reference that
// the other datagram servers' results are divided by: what has come is taken in one system call,
// up to 64 datagrams, and sent back in another.
//
// -m chooses how it waits for the first datagram:
//   block   in recvmmsg itself, with MSG_WAITFORONE (the default, and the reference)
//   epoll   in epoll_wait, as a server does that has more than one socket
//
// Usage: echo_udp -p PORT [-m mode]
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64, SIZE = 2048, SOCKET_BUFFER = 4 << 20 };

static struct mmsghdr messages[BATCH];
static struct iovec parts[BATCH];
static struct sockaddr_in peers[BATCH];
static char buffers[BATCH][SIZE];

static void die(const char* what) {
  perror(what);
  exit(1);
}

static void send_all(int fd, unsigned count) {
  for (unsigned sent = 0; sent < count;) {
    int n = sendmmsg(fd, messages + sent, count - sent, 0);
    if (n < 0 && errno != EINTR && errno != EAGAIN) die("sendmmsg");
    if (n > 0) sent += (unsigned)n;
  }
}

// Echoes one batch. Returns 0 when nothing was there.
static int echo(int fd, int flags) {
  for (unsigned i = 0; i < BATCH; i++) {
    parts[i].iov_len = SIZE;
    messages[i].msg_hdr.msg_namelen = sizeof peers[i];
  }
  int n = recvmmsg(fd, messages, BATCH, flags, NULL);
  if (n < 0 && errno == EAGAIN) return 0;
  if (n < 0 && errno != EINTR) die("recvmmsg");
  for (int i = 0; i < n; i++)
    parts[i].iov_len = messages[i].msg_len;
  if (n > 0) send_all(fd, (unsigned)n);
  return 1;
}

int main(int argc, char** argv) {
  int port = 0, use_epoll = 0;
  for (int o; (o = getopt(argc, argv, "p:m:")) != -1;) {
    if (o == 'p') {
      port = atoi(optarg);
    } else if (o == 'm' && (!strcmp(optarg, "block") || !strcmp(optarg, "epoll"))) {
      use_epoll = optarg[0] == 'e';
    } else {
      port = 0;
      break;
    }
  }
  if (port <= 0) {
    fprintf(stderr, "echo_udp: bad usage, see the head of echo_udp.c\n");
    return 64;
  }
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | (use_epoll ? SOCK_NONBLOCK : 0), 0);
  int size = SOCKET_BUFFER;
  struct sockaddr_in sa = {.sin_family = AF_INET,
                           .sin_port = htons((unsigned short)port),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (fd < 0 || bind(fd, (struct sockaddr*)&sa, sizeof sa)) die("bind");
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  for (unsigned i = 0; i < BATCH; i++) {
    parts[i].iov_base = buffers[i];
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    messages[i].msg_hdr.msg_name = &peers[i];
  }
  if (!use_epoll) {
    for (;;)
      echo(fd, MSG_WAITFORONE);
  }
  int ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event ev = {.events = EPOLLIN};
  if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev)) die("epoll");
  for (;;) {
    int n = epoll_wait(ep, &ev, 1, -1);
    if (n < 0 && errno != EINTR) die("epoll_wait");
    if (n > 0) echo(fd, 0);
  }
}
