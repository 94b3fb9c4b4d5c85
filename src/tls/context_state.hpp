// What a Context stands for: an SSL_CTX that nobody changes any more, and what OpenSSL does not
// keep.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "runloom/tls/context.hpp"
#include "runloom/tls/session.hpp"

namespace runloom::tls {

struct FreeContext {
  void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
};
using ContextPtr = std::unique_ptr<SSL_CTX, FreeContext>;

struct Context::State {
  ContextPtr ssl{};
  Role role = Role::client;
  bool verify = true;
  bool check_host = true;
  bool ignore_truncation = false;
  bool alpn_required = true;
  std::string alpn{};  // length-prefixed, as it goes over the wire
  // For connections that change to this context after they began with another.
  std::string cipher_suites{};
  std::string groups{};
  ClientHelloHandler on_client_hello{};
};

struct FreeSession {
  void operator()(SSL_SESSION* session) const noexcept { SSL_SESSION_free(session); }
};
struct Session::State {
  std::unique_ptr<SSL_SESSION, FreeSession> ssl{};
  std::shared_ptr<const Context::State> context{};  // that it was made with
  std::string host{};
};

}  // namespace runloom::tls
