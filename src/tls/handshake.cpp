// The handshake.
//
//     begun -> (the client's hello is asked about)* -> agreed -> established
//                         any of them -> failed, for good
//
// It is made by the holder of the handshake's turn, who alone reads and writes the stream below
// meanwhile. Its flights are flushed before the peer is waited for. A deadline or a cancel leaves
// everything as it is, and the next call goes on.
//
// Two ends of it are special. A TLS 1.3 server has agreed when the client's Finished is there; what
// it sends then are tickets, which a client may never read: they are tried to be sent, and that
// this failed is no failure of the handshake. A TLS 1.3 client has agreed when its own Finished is
// on its way; where that can't be sent any more the server has said why, and the first read tells.
#include <utility>

#include "core.hpp"

namespace runloom::tls {

Result<void> Stream::Core::handshake(Deadline deadline) {
  if (established.load(std::memory_order_acquire)) return {};
  const Turn turn(handshake_turn, deadline);
  if (!turn) return Unexpected{turn.error()};
  if (closed) return fail(Errc::closed);
  if (established.load(std::memory_order_acquire)) return {};
  if (handshake_error) return Unexpected{handshake_error};
  auto result = run_handshake(deadline);
  if (closed && !result) return fail(Errc::closed);
  if (!result && !ends_the_call_only(result.error())) handshake_error = result.error();
  return result;
}

Result<void> Stream::Core::run_handshake(Deadline deadline) {
  bool filled = false;
  // OpenSSL takes some 50 KiB when a handshake begins. A client that says nothing gets none of it.
  if (first_words_wanted()) {
    if (auto more = fill(deadline); !more) return more;
    filled = true;
  }
  for (;; filled = true) {
    Hold hold(lock);
    if (closed) return fail(Errc::closed);
    Step step = engine.handshake();
    while (step == Step::wants_client_hello) {
      if (auto ok = ask_handler(hold); !ok) return ok;
      step = engine.handshake();
    }
    if (step == Step::done) return handshake_done(hold, deadline);
    if (step == Step::failed) {
      // The alert. A peer that is gone, or does not read, shall not hide what went wrong.
      engine.port().out.try_flush(hold, *below);
      return Unexpected{engine.error()};
    }
    if (!handshake_write_error) {
      const auto sent = flush(hold, deadline);
      if (!sent && ends_the_call_only(sent.error())) return sent;
      // The peer may have sent an alert before it closed: what is there is read, and no more.
      if (!sent) handshake_write_error = sent.error();
    }
    hold.unlock();
    if (filled && deadline.passed()) {
      blocked_on = net::kRead;
      return fail(Errc::timed_out);
    }
    if (auto more = fill(handshake_write_error ? Deadline::now() : deadline); !more) {
      if (handshake_write_error) return Unexpected{handshake_write_error};
      return more;
    }
  }
}

bool Stream::Core::first_words_wanted() {
  const Hold hold(lock);
  return engine.context()->role == Role::server && engine.port().in.size() == 0 &&
         SSL_in_before(engine.ssl()) == 1;
}

Result<void> Stream::Core::handshake_done(Hold& hold, Deadline deadline) {
  const bool new_version = SSL_version(engine.ssl()) >= TLS1_3_VERSION;
  if (new_version && engine.context()->role == Role::server) {
    engine.port().out.try_flush(hold, *below);
  } else if (auto sent = flush(hold, deadline); !sent) {
    if (ends_the_call_only(sent.error()) || sent.error() == Errc::closed || !new_version)
      return sent;
  }
  established.store(true, std::memory_order_release);
  return {};
}

// The handler runs without the lock, and may park.
Result<void> Stream::Core::ask_handler(Hold& hold) {
  const ClientHelloHandler& handler = engine.hello_handler();
  hold.unlock();
  struct Refuse {
    Core& core;
    Hold& hold;
    int alert;
    ~Refuse() {
      if (alert == 0) return;
      if (!hold.owns_lock()) hold.lock();
      core.engine.answer_hello(nullptr, alert);
      static_cast<void>(core.engine.handshake());
      core.engine.port().out.try_flush(hold, *core.below);
    }
  } refuse{*this, hold, kAlertInternalError};
  Result<std::optional<Context>> answer = fail(Errc::closed);
  try {
    answer = handler(engine.hello());
  } catch (...) {
    handshake_error = tls_error(TlsErrc::refused);
    throw;
  }
  if (!answer) {
    const std::error_code error = answer.error();
    const int alert = error == TlsErrc::alert ? tls_detail(error) : 0;
    refuse.alert = alert != 0 ? alert : kAlertUnrecognizedName;
    return Unexpected{error};
  }
  if (*answer && (**answer).state()->role != Role::server)
    return Unexpected{tls_error(TlsErrc::configuration)};
  refuse.alert = 0;
  hold.lock();
  engine.answer_hello(*answer ? (**answer).state() : nullptr, 0);
  return {};
}

}  // namespace runloom::tls
