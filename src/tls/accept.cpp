#include "runloom/tls/accept.hpp"

#include <chrono>
#include <utility>

#include "outbox.hpp"
#include "runloom/tls/stream.hpp"

namespace runloom::tls {
namespace {

using namespace std::chrono_literals;

// A close with bytes that nobody has read resets the connection, and with it the alert is lost.
void let_alert_arrive(net::Stream& below, Deadline deadline) noexcept {
  net::lingering_close(
      below, {.deadline = Deadline::earlier(deadline, Deadline::after(1s)), .bytes = 65536});
}

}  // namespace

Result<std::unique_ptr<net::Stream>> accept(std::unique_ptr<net::Stream> below,
                                            const Context& context, Deadline deadline) {
  RUNLOOM_TRY(auto stream, Stream::server(std::move(below), context));
  const auto done = stream.handshake(deadline);
  if (done) return std::unique_ptr<net::Stream>(std::make_unique<Stream>(std::move(stream)));
  const bool said_why =
      done.error().category() == tls_category() && done.error() != TlsErrc::unexpected_eof;
  if (said_why && stream.below()) let_alert_arrive(*stream.below(), deadline);
  return Unexpected{done.error()};
}

net::ServerOptions::Wrap server_wrap(Context context) {
  return [context = std::move(context)](std::unique_ptr<net::Stream> below,
                                        const net::ConnectionInfo&, Deadline deadline) {
    return accept(std::move(below), context, deadline);
  };
}

}  // namespace runloom::tls
