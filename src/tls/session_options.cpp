// Sessions: what an SSL_CTX is told about them, and where a client keeps what it gets.
#include "session_options.hpp"

#include <openssl/rand.h>

#include <array>

#include "engine.hpp"

namespace runloom::tls {
namespace {

int keep_session(SSL* ssl, SSL_SESSION* session) noexcept {
  // 1: the reference is ours now.
  return Engine::of(ssl).on_session(session) ? 1 : 0;
}

void set_client_sessions(SSL_CTX* context) noexcept {
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
  SSL_CTX_sess_set_new_cb(context, &keep_session);
}

bool set_server_sessions(SSL_CTX* context, const ContextOptions& options) noexcept {
  // A session that was made under another context must not be resumed under this one, which may
  // demand other certificates.
  std::array<unsigned char, 16> id;
  if (RAND_bytes(id.data(), id.size()) != 1) return false;
  if (SSL_CTX_set_session_id_context(context, id.data(), id.size()) != 1) return false;
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_SERVER);
  SSL_CTX_sess_set_cache_size(context, static_cast<long>(options.session_cache_size));
  return true;
}

}  // namespace

bool set_sessions(SSL_CTX* context, Role role, const ContextOptions& options) noexcept {
  if (!options.sessions) {
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    return SSL_CTX_set_num_tickets(context, 0) == 1;
  }
  if (!options.session_tickets) SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_timeout(context, static_cast<long>(options.session_lifetime.count()));
  if (role == Role::server) return set_server_sessions(context, options);
  set_client_sessions(context);
  return true;
}

}  // namespace runloom::tls
