// A server behind proxies, and one that puts a protocol under its handlers.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "runloom/net/proxy_protocol.hpp"
#include "runloom/net/server.hpp"
#include "support/server.hpp"
#include "support/unix_test.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using test::expect_echo;
using test::Serving;
using test::yield_until;

Address at(const char* text) {
  return Address::parse(text).value();
}
const Network kLoopback = Network::parse("127.0.0.0/8").value();

// Says who the client is, then echoes.
void say_who(Connection& connection) {
  const ConnectionInfo& info = connection.info();
  const std::string line = info.peer.to_string() + " to " + info.local.to_string() + '\n';
  if (connection.write_all(bytes(line))) test::echo(connection);
}

void expect_line(Stream& client, const std::string& line) {
  std::string back(line.size(), '\0');
  ASSERT_EQ(client.read_full(test::writable(back)).value(), line.size());
  EXPECT_EQ(back, line);
}

ServerOptions behind(Network trusted) {
  ServerOptions options;
  options.proxy.trusted.push_back(trusted);
  options.report = [](const ServerReport&) {};
  return options;
}

NET_TEST(ServerProxy, TheHeaderTellsWhoItIs) {
  std::mutex mutex;
  std::string tlvs;
  Address proxy;
  Serving server(
      [&](Connection& connection) {
        {
          const std::lock_guard hold(mutex);
          tlvs = connection.info().tlvs;
          proxy = connection.info().proxy;
        }
        say_who(connection);
      },
      behind(kLoopback));
  auto one = server.connect();
  ASSERT_TRUE(one.write_all(bytes(proxy_v1(at("192.0.2.1:7"), at("192.0.2.2:80")) + "early")));
  expect_line(one, "192.0.2.1:7 to 192.0.2.2:80\nearly");
  {
    const std::lock_guard hold(mutex);
    EXPECT_EQ(proxy, one.local_address().value());
  }
  const std::vector<ProxyTlv> sent{{0x02, "example.org"}};
  auto two = server.connect();
  ASSERT_TRUE(two.write_all(bytes(proxy_v2(at("[2001:db8::1]:7"), at("[::1]:80"), sent, true))));
  expect_line(two, "[2001:db8::1]:7 to [::1]:80\n");
  expect_echo(two, "later");
  {
    const std::lock_guard hold(mutex);
    EXPECT_NE(tlvs.find("example.org"), std::string::npos);
  }
  // A proxy that speaks for itself, and one that doesn't know.
  for (const std::string& header : {proxy_v2_local(), std::string("PROXY UNKNOWN\r\n")}) {
    auto own = server.connect();
    ASSERT_TRUE(own.write_all(bytes(header)));
    expect_line(own,
                own.local_address()->to_string() + " to " + server.address().to_string() + '\n');
  }
  EXPECT_EQ(server->stats().proxied, 2u);
}

NET_TEST(ServerProxy, OnlyTheTrustedMayTell) {
  const auto elsewhere = Network::parse("192.0.2.0/24").value();
  Serving strict(say_who, behind(elsewhere));
  auto refused = strict.connect();
  EXPECT_TRUE(test::reads_end(refused));
  yield_until([&] { return strict->stats().untrusted == 1; });
  EXPECT_EQ(strict->stats().accepted, 0u);

  auto options = behind(elsewhere);
  options.proxy.serve_untrusted = true;
  Serving open(say_who, options);
  auto liar = open.connect();
  const std::string header = proxy_v1(at("192.0.2.1:7"), at("192.0.2.2:80"));
  ASSERT_TRUE(liar.write_all(bytes(header)));
  // It is a client like any other, and what it says is data.
  expect_line(liar, liar.local_address()->to_string() + " to " + open.address().to_string() + '\n' +
                        header);
}

NET_TEST(ServerProxy, BehindAUnixSocket) {
  test::SocketDir directory;
  Serving server(say_who, behind(Network::parse("unix:").value()), directory.address("s"));
  auto client = server.connect_unix();
  ASSERT_TRUE(client.write_all(bytes(proxy_v2(at("192.0.2.1:7"), at("192.0.2.2:80")))));
  expect_line(client, "192.0.2.1:7 to 192.0.2.2:80\n");
}

NET_TEST(ServerProxy, WhatIsNoHeaderEndsItsConnectionOnly) {
  std::mutex mutex;
  std::set<std::string> faults;
  auto options = behind(kLoopback);
  options.report = [&](const ServerReport& report) {
    const std::lock_guard hold(mutex);
    faults.insert(to_string(report.fault));
  };
  Serving server(say_who, options);
  auto plain = server.connect();
  ASSERT_TRUE(plain.write_all(bytes("G")));
  test::reads_end(plain);  // or a reset, because the byte is unread
  auto check = server.connect();
  check.close();
  yield_until([&] { return server->stats().active == 0; });
  EXPECT_EQ(server->stats().fault(ServerFault::proxy_header), 1u);
  options.timeouts.handshake = 20ms;
  Serving strict(say_who, options);
  auto silent = strict.connect();
  EXPECT_TRUE(test::reads_end(silent));
  EXPECT_EQ(strict->stats().timeout(ServerTimeout::handshake), 1u);
  const std::lock_guard hold(mutex);
  EXPECT_EQ(faults, std::set<std::string>{to_string(ServerFault::proxy_header)});
}

// A header in trickles does not get more time than one that doesn't come.
NET_TEST(ServerProxy, R02AHeaderInTricklesIsCutOff) {
  auto options = behind(kLoopback);
  options.timeouts.handshake = 50ms;
  Serving server(say_who, options);
  auto slow = server.connect();
  const std::string header = proxy_v2(at("192.0.2.1:7"), at("192.0.2.2:80"),
                                      std::vector<ProxyTlv>{{0xe0, std::string(2000, 'x')}});
  for (const char& byte : header) {
    if (!slow.write_all(bytes({&byte, 1}))) break;
    if (!this_fiber::sleep_for(1ms)) break;
  }
  yield_until([&] { return server->stats().active == 0; });
  EXPECT_EQ(server->stats().timeout(ServerTimeout::handshake), 1u);
}

// Not the proxy but the client has its number of connections.
NET_TEST(ServerProxy, TheClientCountsAndNotTheProxy) {
  auto options = behind(kLoopback);
  options.max_connections_per_peer = 2;
  Serving server(say_who, options);
  const auto connect_as = [&](const char* client) {
    auto stream = server.connect();
    EXPECT_TRUE(stream.write_all(bytes(proxy_v1(at(client), at("[::1]:80")))));
    return stream;
  };
  std::vector<TcpStream> clients;
  for (const char* client : {"[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8:0:1::1]:1"}) {
    clients.push_back(connect_as(client));
    expect_line(clients.back(), std::string(client) + " to [::1]:80\n");
  }
  auto third = connect_as("[2001:db8::3]:1");
  EXPECT_TRUE(test::reads_end(third));
  EXPECT_EQ(server->stats().rejected_peers, 1u);
  EXPECT_EQ(server->stats().peers, 2u);
}

// ---------------------------------------------------------------- wrap

// Stands for TLS: asks for a word first, and then passes bytes on turned by 1.
class Turned final : public Stream {
 public:
  explicit Turned(std::unique_ptr<Stream> below) : below_(std::move(below)) {}
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline) override {
    auto count = below_->read_some(buffer, deadline);
    for (std::size_t i = 0; count && i < *count; ++i)
      buffer[i] = static_cast<std::byte>(static_cast<int>(buffer[i]) - 1);
    return count;
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline) override {
    const std::byte turned = static_cast<std::byte>(static_cast<int>(data[0]) + 1);
    return below_->write_some({&turned, 1}, deadline);
  }
  Result<void> wait_readable(Deadline deadline) override { return below_->wait_readable(deadline); }
  Result<void> shutdown_write() override { return below_->shutdown_write(); }
  void close() noexcept override { below_->close(); }

 private:
  std::unique_ptr<Stream> below_;
};

Result<std::unique_ptr<Stream>> turn(std::unique_ptr<Stream> below, const ConnectionInfo&,
                                     Deadline deadline) {
  std::string word(5, '\0');
  RUNLOOM_TRY(const std::size_t count, below->read_full(test::writable(word), deadline));
  if (count != 5 || word != "hello") return fail_errno(EPROTO);
  return std::unique_ptr<Stream>(new Turned(std::move(below)));
}

NET_TEST(ServerWrap, AProtocolLiesUnderTheHandler) {
  auto options = behind(kLoopback);
  options.wrap = turn;
  options.linger = ServerOptions::Linger{};
  Serving server(
      [](Connection& connection) {
        EXPECT_EQ(connection.tcp(), nullptr);
        EXPECT_EQ(connection.info().peer, at("192.0.2.1:7"));
        test::echo(connection);
      },
      options);
  auto client = server.connect();
  // Header, handshake and data in one segment (L10): what was not the header's is the next one's.
  const std::string header = proxy_v1(at("192.0.2.1:7"), at("192.0.2.2:80"));
  ASSERT_TRUE(client.write_all(bytes(header + "hellobcd")));
  EXPECT_EQ(test::read_text(client, 1).value(), "b");
  ASSERT_TRUE(client.shutdown_write());
  EXPECT_EQ(test::read_to_end(client).value(), "cd");
  yield_until([&] { return server->stats().active == 0; });
  EXPECT_EQ(server->stats().handshakes, 1u);
}

NET_TEST(ServerWrap, AHandshakeThatFailsEndsItsConnectionOnly) {
  std::mutex mutex;
  std::error_code seen;
  Serving server(test::echo_connection, {.wrap = turn, .report = [&](const ServerReport& report) {
                                           const std::lock_guard hold(mutex);
                                           EXPECT_EQ(report.fault, ServerFault::handshake);
                                           seen = report.error;
                                         }});
  auto bad = server.connect();
  ASSERT_TRUE(bad.write_all(bytes("howdy")));
  EXPECT_TRUE(test::reads_end(bad));
  auto good = server.connect();
  ASSERT_TRUE(good.write_all(bytes("hellob")));
  EXPECT_EQ(test::read_text(good).value(), "b");
  yield_until([&] { return server->stats().fault(ServerFault::handshake) == 1; });
  EXPECT_TRUE(server->stop(Deadline::now()));
  const std::lock_guard hold(mutex);
  EXPECT_EQ(seen, errno_code(EPROTO));
}

// Those who say nothing, or a little, are dropped at the deadline, and others are served meanwhile.
NET_TEST(ServerWrap, L02HandshakesThatNeverEnd) {
  const int silent_ones = test::kSanitized ? 50 : 300;
  ServerOptions options{.wrap = turn};
  options.timeouts.handshake = 1s;
  Serving server(test::echo_connection, options);
  std::vector<int> silent;
  for (int i = 0; i < silent_ones; ++i) {
    silent.push_back(test::plain_connect(server.address()));
    ASSERT_GE(silent.back(), 0);
    ASSERT_EQ(::send(silent.back(), "h", i % 2, MSG_NOSIGNAL), i % 2);
  }
  while (server->stats().timeout(ServerTimeout::handshake) <
         static_cast<std::uint64_t>(silent_ones)) {
    auto good = server.connect();
    ASSERT_TRUE(good.write_all(bytes("hellob")));
    EXPECT_EQ(test::read_text(good).value(), "b");
    ASSERT_TRUE(this_fiber::sleep_for(5ms));
  }
  yield_until([&] { return server->stats().active == 0; });
  EXPECT_EQ(server->stats().fault(ServerFault::handshake), 0u);
  for (const int fd : silent)
    ::close(fd);
}

NET_TEST(ServerWrap, AnExceptionEndsItsConnectionOnly) {
  Serving server(test::echo_connection, {.wrap = [](std::unique_ptr<Stream>, const ConnectionInfo&,
                                                    Deadline) -> Result<std::unique_ptr<Stream>> {
                                           throw std::runtime_error("boom");
                                         },
                                         .report = [](const ServerReport&) {}});
  auto client = server.connect();
  EXPECT_TRUE(test::reads_end(client));
  yield_until([&] { return server->stats().fault(ServerFault::handler_exception) == 1; });
}

TEST(ServerWrapDeathTest, IsNotForHandlersOfTcpStream) {
  ServerOptions options{.wrap = turn};
  EXPECT_DEATH(Server([](TcpStream) {}, options), "for handlers of Connection");
}

}  // namespace
}  // namespace runloom::net
