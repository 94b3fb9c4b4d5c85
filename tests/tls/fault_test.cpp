// System calls that fail below TLS.
#include <cerrno>
#include <string>

#include "runloom/tls/stream.hpp"
#include "support/syscall_faults.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using tls::TlsErrc;

// A connection from its handshake to its goodbyes, with all that goes wrong told once.
Result<void> round_trip() {
  TlsPair pair;
  const auto serve = [&]() -> Result<void> {
    std::string text(4, '\0');
    RUNLOOM_TRY(const std::size_t count, pair.server.read_full(writable(text)));
    if (count != 4) return Unexpected{tls::tls_error(TlsErrc::unexpected_eof)};
    if (auto ok = pair.server.write_all(net::bytes(text)); !ok) return ok;
    RUNLOOM_TRY(const std::size_t end, pair.server.read_some(writable(text)));
    EXPECT_EQ(end, 0u);
    return pair.server.shutdown_write();
  };
  auto server = spawn([&] {
    const auto served = serve();
    if (!served) pair.server.close();
    return served;
  });
  const auto client = [&]() -> Result<void> {
    if (auto ok = pair.client.write_all(net::bytes("ping")); !ok) return ok;
    std::string text(4, '\0');
    RUNLOOM_TRY(const std::size_t count, pair.client.read_full(writable(text)));
    if (count != 4) return Unexpected{tls::tls_error(TlsErrc::unexpected_eof)};
    return pair.client.shutdown();
  }();
  if (!client) pair.client.close();
  const auto served = server.join();
  if (!client) return client;
  return served;
}

NET_TEST(TlsFault, EveryCallMayFail) {
  ASSERT_TRUE(round_trip());
  for (const Call call : {Call::recv, Call::send, Call::recvmsg, Call::sendmsg})
    for (const int err : {EINTR, ENOMEM, ENOBUFS, ECONNRESET, EPIPE, ETIMEDOUT})
      for (int at = 1; at < 12; ++at) {
        const Fault fault(call, err, at);
        const auto done = round_trip();
        if (fault.failed() == 0) break;  // there are no more of them
        if (err == EINTR) {
          EXPECT_TRUE(done) << done.error().message();
        } else if (!done) {
          // Of the side that failed, or what the other one made of it.
          EXPECT_TRUE(done.error() == errno_code(err) || done.error() == TlsErrc::unexpected_eof ||
                      done.error() == errno_code(EPIPE) || done.error() == errno_code(ECONNRESET))
              << done.error().message();
        }
      }
  EXPECT_TRUE(round_trip());
}

// A write error ends writing, and what the peer had said can still be read.
NET_TEST(TlsFault, AFailedWriteLeavesTheReading) {
  TlsPair pair;
  pair.establish();
  ASSERT_TRUE(pair.server.write_all(net::bytes("said before")));
  {
    const Fault send(Call::send, ECONNRESET, 1, 100);
    const Fault sendmsg(Call::sendmsg, ECONNRESET, 1, 100);
    EXPECT_FALSE(pair.client.write_all(net::bytes("lost")));
    if (send.failed() + sendmsg.failed() == 0) return;  // the ring sends
  }
  EXPECT_EQ(pair.client.write_all(net::bytes("too")).error(), errno_code(ECONNRESET));
  EXPECT_EQ(read_text(pair.client).value(), "said before");
}

}  // namespace
}  // namespace runloom::test
