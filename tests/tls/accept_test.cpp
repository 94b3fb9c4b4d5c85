#include "runloom/tls/accept.hpp"

#include <chrono>

#include "runloom/tls/stream.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using tls::TlsErrc;

NET_TEST(TlsAccept, GivesAStreamThatIsReady) {
  TcpPair pair;
  const auto wrap = tls::server_wrap(tls_world().server_context);
  auto server = spawn([&] {
    auto stream =
        wrap(std::make_unique<net::TcpStream>(std::move(pair.server)), Deadline::after(10s));
    EXPECT_TRUE(stream);
    return (*stream)->write_all(net::bytes("ready"));
  });
  auto client =
      tls::Stream::client(std::move(pair.client), tls_world().client_context, {.host = "localhost"})
          .value();
  EXPECT_EQ(read_text(client).value(), "ready");
  EXPECT_TRUE(server.join());
}

// With more behind it than the server has read: a plain close would reset the connection.
NET_TEST(TlsAccept, TheAlertArrives) {
  TcpPair pair;
  const auto wrap = tls::server_wrap(tls_world().server_context);
  ASSERT_TRUE(pair.client.write_all(net::bytes("GET / HTTP/1.1\r\n\r\n" + pattern(100'000))));
  auto server = spawn([&] {
    return wrap(std::make_unique<net::TcpStream>(std::move(pair.server)), Deadline::after(10s))
        .error();
  });
  std::string record(7, '\0');
  ASSERT_TRUE(pair.client.read_full(writable(record)));
  EXPECT_EQ(record[0], 21);  // an alert
  pair.client.close();
  EXPECT_EQ(server.join().value(), TlsErrc::protocol);
}

NET_TEST(TlsAccept, ASilentPeerGoesAtTheDeadlineL02) {
  TcpPair pair;
  const auto wrap = tls::server_wrap(tls_world().server_context);
  auto stream =
      wrap(std::make_unique<net::TcpStream>(std::move(pair.server)), Deadline::after(2ms));
  EXPECT_EQ(stream.error(), Errc::timed_out);
  EXPECT_EQ(read_text(pair.client).value(), "");
}

}  // namespace
}  // namespace runloom::test
