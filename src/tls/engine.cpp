#include "engine.hpp"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "openssl_error.hpp"
#include "runloom/sched/deadline.hpp"

namespace runloom::tls {
namespace {

// Of key updates, tickets and hello requests, without a byte of data in either direction between;
// and one a second more, for connections that have nothing to say for days. Servers send a few
// tickets at once; nobody has a reason for so many.
constexpr std::int64_t kMostIdleMessages = 64;

bool is_ip(const std::string& host) noexcept {
  in6_addr address;
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

Engine& Engine::of(SSL* ssl) noexcept {
  return *static_cast<Engine*>(SSL_get_app_data(ssl));
}

Engine::~Engine() {
  // OpenSSL takes a connection that ends without goodbyes for broken and forgets its session. Since
  // TLS 1.1 such an end says nothing about the session (RFC 5246, 7.2.1); what does was an alert,
  // for which it has forgotten it already.
  if (ssl_ && established_ && !error_)
    SSL_set_shutdown(ssl_.get(), SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
}

// ---------------------------------------------------------------- the beginning

Result<void> Engine::open(std::shared_ptr<const Context::State> context, const std::string& host,
                          const std::shared_ptr<const Session::State>& session) {
  context_ = std::move(context);
  begin_call();
  ssl_.reset(SSL_new(context_->ssl.get()));
  BIO* const bio = ssl_ ? make_cipher_bio(port_) : nullptr;
  if (!bio) {
    ERR_clear_error();
    return fail_errno(ENOMEM);
  }
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), this);
  if (context_->role == Role::server) {
    SSL_set_accept_state(ssl_.get());
    return {};
  }
  SSL_set_connect_state(ssl_.get());
  if (auto ok = expect_host(host); !ok) return ok;
  // What was verified for another host or context says nothing for this one.
  if (session && session->context == context_ && session->host == host_)
    SSL_set_session(ssl_.get(), session->ssl.get());
  ERR_clear_error();
  return {};
}

Result<void> Engine::expect_host(const std::string& host) {
  host_ = host;
  if (host_.ends_with('.')) host_.pop_back();  // a name from the root, as certificates don't say
  const bool checks = context_->verify && context_->check_host;
  if (host_.empty())
    return checks ? Result<void>(Unexpected{tls_error(TlsErrc::configuration)}) : Result<void>();
  const bool no_name = host_.find('\0') != std::string::npos || host_.size() > 255;
  const bool ip = is_ip(host_);
  begin_call();
  bool ok = !no_name;
  // RFC 6066: addresses are not told to the server.
  if (ok && !ip) ok = SSL_set_tlsext_host_name(ssl_.get(), host_.c_str()) == 1;
  if (ok && checks) {
    X509_VERIFY_PARAM* const param = SSL_get0_param(ssl_.get());
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    ok = ip ? X509_VERIFY_PARAM_set1_ip_asc(param, host_.c_str()) == 1
            : X509_VERIFY_PARAM_set1_host(param, host_.c_str(), host_.size()) == 1;
  }
  ERR_clear_error();
  if (!ok) return Unexpected{tls_error(TlsErrc::configuration)};
  return {};
}

// ---------------------------------------------------------------- calls

void Engine::begin_call() noexcept {
  // Emptying an empty queue walks over all of it.
  if (ERR_peek_error() != 0) ERR_clear_error();
  errno = 0;
}

Engine::Step Engine::fail(std::error_code error) noexcept {
  error_ = error;
  return Step::failed;
}

// What a call came to that returned `result`. Reads the thread's error queue, so nothing may come
// between the two.
Engine::Step Engine::end_call(int result) noexcept {
  if (result > 0) return Step::done;
  const int how = SSL_get_error(ssl_.get(), result);
  if (port_.stopped) {
    ERR_clear_error();
    return fail(tls_error(TlsErrc::flood));
  }
  switch (how) {
    case SSL_ERROR_WANT_READ:
      return Step::wants_input;
    case SSL_ERROR_WANT_CLIENT_HELLO_CB:
      return Step::wants_client_hello;
    case SSL_ERROR_ZERO_RETURN:
      return Step::end;
    default:
      break;
  }
  if (port_.out_of_memory) {
    ERR_clear_error();
    return fail(errno_code(ENOMEM));
  }
  const unsigned long last = ERR_peek_last_error();
  const bool refused =
      ERR_GET_LIB(last) == ERR_LIB_SSL && ERR_GET_REASON(last) == SSL_R_CERTIFICATE_VERIFY_FAILED;
  const std::error_code error = take_error(TlsErrc::protocol);
  if (!refused) return fail(error);
  return fail(tls_error(TlsErrc::certificate, static_cast<int>(SSL_get_verify_result(ssl_.get()))));
}

// Of a call that needs nothing from the peer once there was a handshake, which is never repeated.
Engine::Step Engine::only_output(int result) noexcept {
  const Step step = end_call(result);
  if (step == Step::done || step == Step::failed) return step;
  return fail(tls_error(TlsErrc::protocol));
}

Engine::Step Engine::handshake() noexcept {
  if (error_) return Step::failed;
  begin_call();
  const Step step = end_call(SSL_do_handshake(ssl_.get()));
  if (step == Step::done) established_ = true;
  return step;
}

Engine::Step Engine::read(std::span<std::byte> buffer, std::size_t& count) noexcept {
  count = 0;
  if (error_) return Step::failed;
  // A record a call: go on for as long as the inbox has whole ones.
  while (count < buffer.size()) {
    std::size_t part = 0;
    begin_call();
    const Step step =
        end_call(SSL_read_ex(ssl_.get(), buffer.data() + count, buffer.size() - count, &part));
    // An end or a failure behind the bytes is met again by the next call.
    if (step != Step::done) return count != 0 ? Step::done : step;
    idle_messages_ = 0;
    count += part;
    if (port_.in.size() == 0 && SSL_pending(ssl_.get()) == 0) break;
  }
  return Step::done;
}

Engine::Step Engine::peek(std::size_t& pending) noexcept {
  pending = 0;
  if (error_) return Step::failed;
  std::byte byte;
  std::size_t count = 0;
  begin_call();
  const Step step = end_call(SSL_peek_ex(ssl_.get(), &byte, 1, &count));
  if (step == Step::done) pending = static_cast<std::size_t>(SSL_pending(ssl_.get()));
  return step;
}

Engine::Step Engine::write(std::span<const std::byte> data, std::size_t& count) noexcept {
  count = 0;
  if (error_) return Step::failed;
  idle_messages_ = 0;
  begin_call();
  const std::size_t most = std::min<std::size_t>(data.size(), SSL3_RT_MAX_PLAIN_LENGTH);
  return only_output(SSL_write_ex(ssl_.get(), data.data(), most, &count));
}

void Engine::rest() noexcept {
  SSL* const ssl = ssl_.get();
  // SSL_free_buffers() itself looks for ciphertext only.
  if (!ssl || SSL_has_pending(ssl) != 0) return;
  // What was decrypted was wiped when it was read; the whole buffer need not be, once more.
  SSL_clear_options(ssl, SSL_OP_CLEANSE_PLAINTEXT);
  SSL_free_buffers(ssl);
  SSL_set_options(ssl, SSL_OP_CLEANSE_PLAINTEXT);
}

Engine::Step Engine::send_close_notify() noexcept {
  if (close_notify_sent_) return Step::done;
  if (error_) return Step::failed;
  begin_call();
  const int result = SSL_shutdown(ssl_.get());
  // 0: ours is sent, the peer's has not come.
  const Step step = result == 0 ? Step::done : only_output(result);
  ERR_clear_error();
  if (step == Step::done) close_notify_sent_ = true;
  return step;
}

Result<void> Engine::update_keys(bool peer_too) noexcept {
  if (error_) return Unexpected{error_};
  begin_call();
  const int type = peer_too ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED;
  if (SSL_key_update(ssl_.get(), type) != 1) return Unexpected{take_error(TlsErrc::protocol)};
  if (only_output(SSL_do_handshake(ssl_.get())) != Step::done) return Unexpected{error_};
  return {};
}

// ---------------------------------------------------------------- callbacks

void Engine::on_message(int content_type, std::span<const std::byte>) noexcept {
  if (!established_ || content_type != SSL3_RT_HANDSHAKE) return;
  // OpenSSL bounds empty records and warnings by itself, but not these.
  const std::int64_t now = monotonic_ns();
  if (idle_messages_ == 0) idle_since_ns_ = now;
  const std::int64_t seconds = (now - idle_since_ns_) / 1'000'000'000;
  if (++idle_messages_ > kMostIdleMessages + seconds) port_.stopped = true;
}

bool Engine::on_session(SSL_SESSION* session) noexcept {
  session_.reset(session);
  return true;
}

std::shared_ptr<const Session::State> Engine::session() const {
  SSL_SESSION* session = session_.get();
  // One that was resumed goes on, before TLS 1.3, where a ticket is used once.
  if (!session && established_ && SSL_version(ssl_.get()) < TLS1_3_VERSION)
    session = SSL_get0_session(ssl_.get());
  if (!session || SSL_SESSION_is_resumable(session) != 1) return nullptr;
  auto state = std::make_shared<Session::State>();
  SSL_SESSION_up_ref(session);
  state->ssl.reset(session);
  state->context = context_;
  state->host = host_;
  return state;
}

}  // namespace runloom::tls
