#include "runloom/tls/context.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <span>

#include "context_state.hpp"
#include "credentials.hpp"
#include "engine.hpp"
#include "openssl_error.hpp"
#include "runloom/sched/blocking.hpp"
#include "session_options.hpp"

namespace runloom::tls {

const char* to_string(Version version) noexcept {
  return version == Version::tls1_2 ? "TLSv1.2" : "TLSv1.3";
}

namespace {

using StatePtr = std::shared_ptr<const Context::State>;

// --- callbacks: called inside of OpenSSL, so they may neither park nor throw ---

int on_client_hello(SSL* ssl, int* alert, void*) noexcept {
  return Engine::of(ssl).on_client_hello(alert);
}

void on_message(int written, int, int content_type, const void* data, std::size_t size, SSL* ssl,
                void*) noexcept {
  if (written != 0) return;
  Engine::of(ssl).on_message(content_type, {static_cast<const std::byte*>(data), size});
}

int choose_alpn(SSL* ssl, const unsigned char** out, unsigned char* out_size,
                const unsigned char* offered, unsigned int offered_size, void*) noexcept {
  const auto& state = *Engine::of(ssl).context();
  unsigned char* chosen = nullptr;
  const int found = SSL_select_next_proto(
      &chosen, out_size, reinterpret_cast<const unsigned char*>(state.alpn.data()),
      static_cast<unsigned>(state.alpn.size()), offered, offered_size);
  if (found == OPENSSL_NPN_NEGOTIATED) {
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
  }
  return state.alpn_required ? SSL_TLSEXT_ERR_ALERT_FATAL : SSL_TLSEXT_ERR_NOACK;
}

// --- options ---

int number_of(Version version) noexcept {
  return version == Version::tls1_2 ? TLS1_2_VERSION : TLS1_3_VERSION;
}

Unexpected refuse(std::string& problem, std::string what) {
  problem = std::move(what);
  const std::error_code error = take_error(TlsErrc::configuration);
  if (tls_detail(error) != 0) problem += " (" + error.message() + ")";
  return Unexpected{error};
}

Result<void> set_protocol(SSL_CTX* context, const ContextOptions& options, std::string& problem) {
  if (options.max_version < options.min_version)
    return refuse(problem, "the greatest version is below the smallest");
  if (SSL_CTX_set_min_proto_version(context, number_of(options.min_version)) != 1 ||
      SSL_CTX_set_max_proto_version(context, number_of(options.max_version)) != 1)
    return refuse(problem, "the versions can't be set");
  if (!options.ciphers.empty() && SSL_CTX_set_cipher_list(context, options.ciphers.c_str()) != 1)
    return refuse(problem, "no cipher in '" + options.ciphers + "'");
  if (!options.cipher_suites.empty() &&
      SSL_CTX_set_ciphersuites(context, options.cipher_suites.c_str()) != 1)
    return refuse(problem, "no cipher suite in '" + options.cipher_suites + "'");
  if (!options.groups.empty() && SSL_CTX_set1_groups_list(context, options.groups.c_str()) != 1)
    return refuse(problem, "no group in '" + options.groups + "'");
  // Not SSL_MODE_RELEASE_BUFFERS, by which each record would take its memory anew: see
  // Engine::rest().
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_CLEANSE_PLAINTEXT | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                   SSL_OP_PRIORITIZE_CHACHA);
  return {};
}

Result<void> set_alpn(Context::State& state, const ContextOptions& options, std::string& problem) {
  for (const std::string& name : options.alpn) {
    if (name.empty() || name.size() > 255)
      return refuse(problem, "an ALPN protocol has from 1 to 255 bytes");
    state.alpn += static_cast<char>(name.size());
    state.alpn += name;
  }
  if (state.alpn.size() > 65535 - 2) return refuse(problem, "too many ALPN protocols");
  state.alpn_required = options.alpn_required;
  if (state.alpn.empty()) return {};
  SSL_CTX* const context = state.ssl.get();
  if (state.role == Role::server) {
    SSL_CTX_set_alpn_select_cb(context, &choose_alpn, nullptr);
  } else if (SSL_CTX_set_alpn_protos(context,
                                     reinterpret_cast<const unsigned char*>(state.alpn.data()),
                                     static_cast<unsigned>(state.alpn.size())) != 0) {
    return refuse(problem, "the ALPN protocols can't be set");
  }
  return {};
}

Result<void> set_verification(Context::State& state, const ContextOptions& options,
                              std::string& problem) {
  const bool server = state.role == Role::server;
  int mode = SSL_VERIFY_NONE;
  if (server && options.client_certificates != ClientCertificates::none) {
    mode = SSL_VERIFY_PEER | SSL_VERIFY_CLIENT_ONCE;
    if (options.client_certificates == ClientCertificates::required)
      mode |= SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
  } else if (!server && options.verify) {
    mode = SSL_VERIFY_PEER;
  }
  SSL_CTX_set_verify(state.ssl.get(), mode, nullptr);
  state.verify = mode != SSL_VERIFY_NONE;
  state.check_host = options.check_host;
  if (!state.verify) return {};
  return trust(state.ssl.get(), state.role, options, problem);
}

Result<StatePtr> build(Role role, const ContextOptions& options,
                       const std::vector<IdentityText>& identities, std::string& problem) {
  ERR_clear_error();
  auto state = std::make_shared<Context::State>();
  state->role = role;
  state->ssl.reset(SSL_CTX_new(role == Role::client ? TLS_client_method() : TLS_server_method()));
  SSL_CTX* const context = state->ssl.get();
  if (!context) return refuse(problem, "OpenSSL can't make a context");
  if (auto ok = set_protocol(context, options, problem); !ok) return Unexpected{ok.error()};
  for (const IdentityText& identity : identities)
    if (auto ok = use_identity(context, identity, problem); !ok) return Unexpected{ok.error()};
  if (role == Role::server && identities.empty() && !options.on_client_hello)
    return refuse(problem, "a server needs a certificate");
  if (auto ok = set_verification(*state, options, problem); !ok) return Unexpected{ok.error()};
  if (auto ok = set_alpn(*state, options, problem); !ok) return Unexpected{ok.error()};
  if (!set_sessions(context, role, options)) return refuse(problem, "sessions can't be set up");
  SSL_CTX_set_msg_callback(context, &on_message);
  if (role == Role::server)  // a connection may have a handler of its own
    SSL_CTX_set_client_hello_cb(context, &on_client_hello, nullptr);
  state->ignore_truncation = options.ignore_truncation;
  state->on_client_hello = options.on_client_hello;
  state->cipher_suites = options.cipher_suites;
  state->groups = options.groups;
  return StatePtr(std::move(state));
}

// Passwords are fetched before OpenSSL parses the key, because asking may park.
Result<void> ask_password(const Identity& identity, IdentityText& text, std::string& problem) {
  if (!is_encrypted(text.key_pem())) return {};
  if (!identity.password) {
    problem = text.key_from + ": the private key is encrypted, and there is no password";
    return Unexpected{tls_error(TlsErrc::configuration)};
  }
  auto password = identity.password();
  if (!password) {
    problem = text.key_from + ": the password was refused: " + password.error().message();
    return Unexpected{password.error()};
  }
  text.password = Secret(*password);
  return {};
}

Result<Context> make(Role role, const ContextOptions& options, std::string* problem_out) {
  std::string problem;
  auto made = [&]() -> Result<Context> {
    std::vector<IdentityText> identities;
    for (const Identity& identity : options.identities) {
      RUNLOOM_TRY(IdentityText text, blocking([&] { return read_identity(identity, problem); }));
      if (auto ok = ask_password(identity, text, problem); !ok) return Unexpected{ok.error()};
      identities.push_back(std::move(text));
    }
    RUNLOOM_TRY(StatePtr state,
                blocking([&] { return build(role, options, identities, problem); }));
    return Context(std::move(state));
  }();
  if (problem_out) *problem_out = made ? std::string() : problem;
  return made;
}

}  // namespace

Result<Context> Context::client(const ContextOptions& options, std::string* problem) {
  return make(Role::client, options, problem);
}

Result<Context> Context::server(const ContextOptions& options, std::string* problem) {
  return make(Role::server, options, problem);
}

}  // namespace runloom::tls
