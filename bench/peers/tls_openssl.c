// An echo server on OpenSSL alone: blocking sockets, a thread for each connection. What TLS costs
// when nothing stands between it and the kernel.
//
//     tls_openssl PORT CERTIFICATE KEY
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static SSL_CTX* context;

static void* serve(void* argument) {
  const int fd = (int)(long)argument;
  char buffer[65536];
  SSL* const ssl = SSL_new(context);
  SSL_set_fd(ssl, fd);
  if (SSL_accept(ssl) == 1) {
    for (int count; (count = SSL_read(ssl, buffer, sizeof buffer)) > 0;)
      if (SSL_write(ssl, buffer, count) != count) break;
    SSL_shutdown(ssl);
  }
  ERR_clear_error();
  SSL_free(ssl);
  close(fd);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  signal(SIGPIPE, SIG_IGN);
  context = SSL_CTX_new(TLS_server_method());
  SSL_CTX_set_session_id_context(context, (const unsigned char*)"bench", 5);
  if (SSL_CTX_use_certificate_chain_file(context, argv[2]) != 1 ||
      SSL_CTX_use_PrivateKey_file(context, argv[3], SSL_FILETYPE_PEM) != 1) {
    ERR_print_errors_fp(stderr);
    return 1;
  }
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons((unsigned short)atoi(argv[1]))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (struct sockaddr*)&address, sizeof address) != 0 ||
      listen(listener, 4096) != 0) {
    perror("listen");
    return 1;
  }
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&detached, 256 * 1024);
  for (;;) {
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) continue;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    pthread_t thread;
    if (pthread_create(&thread, &detached, &serve, (void*)(long)fd) != 0) close(fd);
  }
}
