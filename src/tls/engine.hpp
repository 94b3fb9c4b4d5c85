// Engine: the SSL object of a connection, and every call that is made on it.
//
// Each call takes ciphertext from the inbox, leaves ciphertext in the outbox and returns at once:
// no OpenSSL frame is ever on the stack of a fiber that parks (I4). The thread's error queue and
// errno, which all fibers of a hub share, are emptied before a call and read right after it.
//
// Used under the connection's lock only. Never parks.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "cipher_bio.hpp"
#include "context_state.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/tls/context.hpp"

namespace runloom::tls {

struct FreeSsl {
  void operator()(SSL* ssl) const noexcept { SSL_free(ssl); }
};

class Engine {
 public:
  // How a call ended.
  enum class Step : std::uint8_t {
    done,
    wants_input,         // the inbox is empty and more is needed
    wants_client_hello,  // hello() is to be answered: answer_hello()
    end,                 // the peer's close_notify
    failed,              // error(); for good
  };

  Engine() = default;
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Once, before anything else. `host` as in ClientOptions.
  Result<void> open(std::shared_ptr<const Context::State> context, const std::string& host,
                    const std::shared_ptr<const Session::State>& session);

  Step handshake() noexcept;
  // As many bytes as are there and fit; at least one when it is done.
  Step read(std::span<std::byte> buffer, std::size_t& count) noexcept;
  // Whether read() would be done; takes nothing. `pending`: how many bytes it has ready.
  Step peek(std::size_t& pending) noexcept;
  // One record, or a part of it: how many bytes of `data` it took, which is not empty.
  Step write(std::span<const std::byte> data, std::size_t& count) noexcept;
  Step send_close_notify() noexcept;
  // Gives OpenSSL's buffers back, some 34 KiB, unless something stands in them. The next records
  // take them anew: for when there is nothing to do.
  void rest() noexcept;
  // Fails without harm where the version has no such thing.
  Result<void> update_keys(bool peer_too) noexcept;

  // Of the last handshake() that wanted it. A null context keeps the one that is; an alert refuses.
  const ClientHello& hello() const noexcept { return hello_; }
  // Who is asked: the connection's own handler, else the context's; empty: nobody. Set before the
  // handshake begins.
  const ClientHelloHandler& hello_handler() const noexcept {
    return own_hello_handler_ ? own_hello_handler_ : context_->on_client_hello;
  }
  void set_hello_handler(ClientHelloHandler handler) noexcept {
    own_hello_handler_ = std::move(handler);
  }
  void answer_hello(std::shared_ptr<const Context::State> context, int alert) noexcept;

  std::error_code error() const noexcept { return error_; }
  CipherPort& port() noexcept { return port_; }
  const CipherPort& port() const noexcept { return port_; }
  SSL* ssl() const noexcept { return ssl_.get(); }
  const std::shared_ptr<const Context::State>& context() const noexcept { return context_; }
  const std::string& host() const noexcept { return host_; }
  bool established() const noexcept { return established_; }
  bool close_notify_sent() const noexcept { return close_notify_sent_; }
  // That the peer's tickets, or the handshake, have brought.
  std::shared_ptr<const Session::State> session() const;

  // For the callbacks of an SSL_CTX.
  static Engine& of(SSL* ssl) noexcept;
  int on_client_hello(int* alert) noexcept;
  bool on_session(SSL_SESSION* session) noexcept;
  void on_message(int content_type, std::span<const std::byte> message) noexcept;

 private:
  enum class Hello : std::uint8_t { none, asked, answered };

  void begin_call() noexcept;
  Step end_call(int result) noexcept;
  Step only_output(int result) noexcept;
  Step fail(std::error_code error) noexcept;
  Result<void> expect_host(const std::string& host);
  void read_hello(SSL* ssl);

  CipherPort port_;
  std::unique_ptr<SSL, FreeSsl> ssl_;  // before the port, which it uses
  std::shared_ptr<const Context::State> context_;
  std::string host_;
  std::error_code error_;
  bool established_ = false;
  bool close_notify_sent_ = false;
  // Messages that carry no data since data came last.
  std::int64_t idle_messages_ = 0;
  std::int64_t idle_since_ns_ = 0;

  Hello hello_state_ = Hello::none;
  int hello_alert_ = 0;
  ClientHello hello_;
  ClientHelloHandler own_hello_handler_;
  std::unique_ptr<SSL_SESSION, FreeSession> session_;
};

}  // namespace runloom::tls
