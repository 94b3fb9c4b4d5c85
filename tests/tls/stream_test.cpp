#include "runloom/tls/stream.hpp"

#include <chrono>
#include <string>
#include <thread>

#include "runloom/sched/cancel.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using tls::Stream;
using tls::TlsErrc;
using tls::Version;

tls::ContextOptions only(tls::ContextOptions options, Version version) {
  options.min_version = options.max_version = version;
  return options;
}
const tls::Context& client_of(Version version) {
  static const tls::Context contexts[] = {make_client(only(client_options(), Version::tls1_2)),
                                          make_client(only(client_options(), Version::tls1_3))};
  return contexts[version == Version::tls1_3];
}

STREAM_TEST(TlsStream, Echoes) {
  for (const Version version : {Version::tls1_2, Version::tls1_3}) {
    TlsPair pair(client_of(version), tls_world().server_context);
    pair.establish();
    EXPECT_EQ(pair.client.version(), version);
    EXPECT_EQ(pair.server.version(), version);
    EXPECT_NE(pair.client.cipher(), "");
    EXPECT_EQ(pair.client.cipher(), pair.server.cipher());
    EXPECT_EQ(pair.server.server_name(), "localhost");
    ASSERT_TRUE(pair.client.write_all(net::bytes("hello")));
    EXPECT_EQ(read_text(pair.server).value(), "hello");
    ASSERT_TRUE(pair.server.write_all(net::bytes("and back")));
    EXPECT_EQ(read_text(pair.client).value(), "and back");
    ASSERT_TRUE(pair.client.shutdown_write());
    EXPECT_EQ(read_text(pair.server).value(), "");
    EXPECT_EQ(read_text(pair.server).value(), "");
    // Half a connection goes on.
    ASSERT_TRUE(pair.server.write_all(net::bytes("last words")));
    EXPECT_EQ(read_text(pair.client).value(), "last words");
    ASSERT_TRUE(pair.server.shutdown_write());
    EXPECT_EQ(read_text(pair.client).value(), "");
    EXPECT_EQ(pair.client.write_all(net::bytes("x")).error(), TlsErrc::write_ended);
  }
}

// Without a handshake() of their own.
STREAM_TEST(TlsStream, TheFirstTransferMakesTheHandshake) {
  TlsPair pair;
  auto server = spawn([&] { return read_text(pair.server); });
  ASSERT_TRUE(pair.client.write_all(net::bytes("x")));
  EXPECT_EQ(server.join().value(), "x");
  EXPECT_TRUE(pair.server.established());
}

STREAM_TEST(TlsStream, MovesALotBothWaysL05) {
  const std::string there = pattern(2'000'000);
  const std::string back = pattern(2'000'000, 77);
  for (const Version version : {Version::tls1_2, Version::tls1_3}) {
    TlsPair pair(client_of(version), tls_world().server_context);
    pair.establish();
    const auto write = [](Stream& stream, const std::string& text) {
      EXPECT_TRUE(stream.write_all(net::bytes(text)));
      EXPECT_TRUE(stream.shutdown_write());
    };
    auto one = spawn([&] { write(pair.client, there); });
    auto two = spawn([&] { write(pair.server, back); });
    auto three = spawn([&] { return read_to_end(pair.server); });
    EXPECT_TRUE(read_to_end(pair.client).value() == back);
    EXPECT_TRUE(three.join().value() == there);
    EXPECT_TRUE(one.join());
    EXPECT_TRUE(two.join());
  }
}

// Key updates from both sides in the middle of it.
NET_TEST(TlsStream, KeysAreUpdatedMeanwhileL05) {
  const std::string text = pattern(3'000'000);
  TlsPair pair(client_of(Version::tls1_3), tls_world().server_context);
  pair.establish();
  const auto write = [&](Stream& stream) {
    for (std::size_t at = 0; at < text.size(); at += 100'000) {
      EXPECT_TRUE(stream.write_all(net::bytes(std::string_view(text).substr(at, 100'000))));
      EXPECT_TRUE(stream.update_keys(at % 200'000 == 0));
    }
    EXPECT_TRUE(stream.shutdown_write());
  };
  auto one = spawn([&] { write(pair.client); });
  auto two = spawn([&] { write(pair.server); });
  auto three = spawn([&] { return read_to_end(pair.server); });
  EXPECT_TRUE(read_to_end(pair.client).value() == text);
  EXPECT_TRUE(three.join().value() == text);
  EXPECT_TRUE(one.join());
  EXPECT_TRUE(two.join());
}

NET_TEST(TlsStream, Version12HasNoKeyUpdates) {
  TlsPair pair(client_of(Version::tls1_2), tls_world().server_context);
  pair.establish();
  EXPECT_EQ(pair.client.update_keys().error(), TlsErrc::protocol);
  ASSERT_TRUE(pair.client.write_all(net::bytes("as good as before")));
  EXPECT_EQ(read_text(pair.server).value(), "as good as before");
}

NET_TEST(TlsStream, TruncationIsNoEndL01) {
  for (const Version version : {Version::tls1_2, Version::tls1_3}) {
    TlsPair pair(client_of(version), tls_world().server_context);
    pair.establish();
    ASSERT_TRUE(pair.server.write_all(net::bytes("half a rep")));
    pair.server.close();
    EXPECT_EQ(read_text(pair.client).value(), "half a rep");
    EXPECT_EQ(read_text(pair.client).error(), TlsErrc::unexpected_eof);
    EXPECT_EQ(read_text(pair.client).error(), TlsErrc::unexpected_eof);
    EXPECT_TRUE(pair.client.wait_readable());
    EXPECT_NE(pair.client.explain(read_text(pair.client).error()).find("unexpected eof"),
              std::string::npos);
  }
}

NET_TEST(TlsStream, TruncationMayBeIgnoredL01) {
  auto options = client_options();
  options.ignore_truncation = true;
  TlsPair pair(make_client(options), tls_world().server_context);
  pair.establish();
  ASSERT_TRUE(pair.server.write_all(net::bytes("all")));
  pair.server.close();
  EXPECT_EQ(read_to_end(pair.client).value(), "all");
}

NET_TEST(TlsStream, ShutdownIsAgreedUpon) {
  TlsPair pair;
  pair.establish();
  auto server = spawn([&] {
    EXPECT_EQ(read_text(pair.server).value(), "");
    return pair.server.shutdown();
  });
  EXPECT_TRUE(pair.client.shutdown());
  EXPECT_TRUE(server.join());
  // The stream below is free for something else.
  auto client_below = pair.client.release();
  auto server_below = pair.server.release();
  ASSERT_TRUE(client_below.below && server_below.below);
  EXPECT_EQ(client_below.received + server_below.received, "");
  ASSERT_TRUE(client_below.below->write_all(net::bytes("plain")));
  EXPECT_EQ(read_text(*server_below.below).value(), "plain");
  EXPECT_EQ(read_text(pair.client).error(), Errc::closed);
}

NET_TEST(TlsStream, ShutdownDownloadsNothingL04) {
  TlsPair pair;
  pair.establish();
  const std::string text = pattern(16'000'000);
  auto server = spawn([&] { return pair.server.write_all(net::bytes(text)); });
  EXPECT_TRUE(pair.client.wait_readable());
  EXPECT_EQ(pair.client.shutdown().error(), TlsErrc::data_after_close_notify);
  pair.client.close();
  const auto written = server.join();
  EXPECT_FALSE(written);
}

NET_TEST(TlsStream, ShutdownEndsAtItsDeadlineL26) {
  TlsPair pair;
  pair.establish();
  EXPECT_EQ(pair.client.shutdown(Deadline::after(2ms)).error(), Errc::timed_out);
  EXPECT_EQ(pair.client.blocked_on(), net::kRead);
  // It is repeated.
  ASSERT_TRUE(pair.server.shutdown_write());
  EXPECT_TRUE(pair.client.shutdown());
}

NET_TEST(TlsStream, DeadlinesEndWaitsL26) {
  TlsPair pair;
  EXPECT_EQ(pair.client.handshake(Deadline::after(2ms)).error(), Errc::timed_out);
  EXPECT_EQ(pair.client.handshake(Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(pair.client.blocked_on(), net::kRead);
  pair.establish();
  EXPECT_EQ(read_text(pair.client, 10, Deadline::after(2ms)).error(), Errc::timed_out);
  EXPECT_EQ(read_text(pair.client, 10, Deadline::now()).error(), Errc::timed_out);
  {
    const CancelScope scope(Deadline::after(2ms));
    EXPECT_EQ(read_text(pair.client).error(), Errc::timed_out);
  }
  EXPECT_EQ(pair.client.wait_readable(Deadline::after(2ms)).error(), Errc::timed_out);
  ASSERT_TRUE(pair.server.write_all(net::bytes("now")));
  EXPECT_TRUE(pair.client.wait_readable());
  EXPECT_TRUE(pair.client.wait_readable(Deadline::now()));
  EXPECT_EQ(read_text(pair.client, 10, Deadline::now()).value(), "now");
}

// A writer that nobody reads: the call ends, and what it has counted goes on later.
NET_TEST(TlsStream, AStalledWriteGoesOnL06L26) {
  const std::string text = pattern(16'000'000);
  TlsPair pair;
  pair.establish();
  std::size_t written = 0;
  EXPECT_EQ(pair.client.write_all(net::bytes(text), Deadline::after(5ms), &written).error(),
            Errc::timed_out);
  EXPECT_EQ(pair.client.blocked_on(), net::kWrite);
  ASSERT_GT(written, 0u);
  ASSERT_LT(written, text.size());
  auto reader = spawn([&] { return read_to_end(pair.server); });
  // Another address and another length.
  std::string rest = text.substr(written);
  EXPECT_TRUE(pair.client.write_all(net::bytes(rest)));
  EXPECT_TRUE(pair.client.shutdown_write());
  EXPECT_TRUE(reader.join().value() == text);
}

NET_TEST(TlsStream, AMessageThatWasCutOffEndsTheWriting) {
  const std::string text = pattern(16'000'000);
  TlsPair pair;
  pair.establish();
  auto writer = spawn([&] { return pair.client.write_all(net::bytes(text)); });
  until_parked(writer.handle(), WaitReason::io_write);
  writer.handle().cancel();
  EXPECT_EQ(writer.join().error(), Errc::cancelled);
  EXPECT_EQ(pair.client.write_all(net::bytes("more")).error(), errno_code(EPIPE));
  EXPECT_EQ(pair.client.write_some(net::bytes("more")).error(), errno_code(EPIPE));
  // Not even an end, which would make it look whole.
  EXPECT_EQ(pair.client.shutdown_write().error(), errno_code(EPIPE));
  // Reading goes on.
  ASSERT_TRUE(pair.server.write_all(net::bytes("heard")));
  EXPECT_EQ(read_text(pair.client).value(), "heard");
}

// What a write_some() has left behind is sent by a reader, who waits for the answer to it.
NET_TEST(TlsStream, AReaderSendsWhatAWriterLeft) {
  TlsPair pair;
  pair.establish();
  std::string text = pattern(16384);
  std::size_t total = 0;
  for (;;) {
    const auto count = pair.client.write_some(net::bytes(text), Deadline::now());
    if (!count) break;
    total += *count;
  }
  auto reader = spawn([&] { return read_text(pair.client); });
  std::string buffer(65536, '\0');
  std::size_t arrived = 0;
  while (arrived < total) {
    const auto count = pair.server.read_some(writable(buffer));
    ASSERT_TRUE(count) << count.error().message();
    ASSERT_NE(*count, 0u);
    arrived += *count;
  }
  EXPECT_EQ(arrived, total);
  ASSERT_TRUE(pair.server.write_all(net::bytes("all of it")));
  EXPECT_EQ(reader.join().value(), "all of it");
}

// The reader waits already when the writer leaves something behind.
NET_TEST(TlsStream, AReaderIsToldWhatAWriterLeaves) {
  TlsPair pair;
  pair.establish();
  auto reader = spawn([&] { return read_text(pair.client); });
  until_parked(reader.handle(), WaitReason::io_read);
  std::string text = pattern(16384);
  std::size_t total = 0;
  while (const auto count = pair.client.write_some(net::bytes(text), Deadline::after(1ms)))
    total += *count;
  std::string buffer(65536, '\0');
  std::size_t arrived = 0;
  while (arrived < total)
    arrived += pair.server.read_some(writable(buffer)).value();
  ASSERT_TRUE(pair.server.write_all(net::bytes("all of it")));
  EXPECT_EQ(reader.join().value(), "all of it");
}

STREAM_TEST(TlsStream, CloseWakesEverybody) {
  TlsPair pair;
  pair.establish();
  const std::string text = pattern(16'000'000);
  auto reader = spawn([&] { return read_text(pair.client).error(); });
  auto second = spawn([&] { return read_text(pair.client).error(); });
  auto waiter = spawn([&] { return pair.client.wait_readable().error(); });
  auto writer = spawn([&] { return pair.client.write_all(net::bytes(text)).error(); });
  auto other = spawn([&] { return pair.client.write_all(net::bytes(text)).error(); });
  // Whichever of them came first.
  yield_until([] {
    bool reads = false;
    bool writes = false;
    for (const FiberInfo& info : Scheduler::current()->fibers()) {
      reads |= info.reason == WaitReason::io_read || info.reason == WaitReason::io_poll;
      writes |= info.reason == WaitReason::io_write;
    }
    return reads && writes;
  });
  pair.client.close();
  for (auto* fiber : {&reader, &second, &waiter, &writer, &other})
    EXPECT_EQ(fiber->join().value(), Errc::closed);
  EXPECT_EQ(pair.client.handshake().error(), std::error_code());
  EXPECT_EQ(read_text(pair.client).error(), Errc::closed);
  EXPECT_EQ(pair.client.shutdown().error(), Errc::closed);
  pair.client.close();
}

NET_TEST(TlsStream, CloseEndsAHandshake) {
  TlsPair pair;
  auto fiber = spawn([&] { return pair.server.handshake().error(); });
  until_parked(fiber.handle(), WaitReason::io_read);
  auto second = spawn([&] { return read_text(pair.server).error(); });
  until_parked(second.handle(), WaitReason::mutex);
  pair.server.close();
  EXPECT_EQ(fiber.join().value(), Errc::closed);
  EXPECT_EQ(second.join().value(), Errc::closed);
}

NET_TEST(TlsStream, ACancelledHandshakeGoesOn) {
  TlsPair pair;
  auto fiber = spawn([&] { return pair.server.handshake().error(); });
  until_parked(fiber.handle(), WaitReason::io_read);
  fiber.handle().cancel();
  EXPECT_EQ(fiber.join().value(), Errc::cancelled);
  pair.establish();
}

// Memory is taken when data is there, in the size that is needed.
NET_TEST(TlsStream, ReadLateTakesMemoryForWhatIsThere) {
  struct Buffer final : net::RecvBuffer {
    std::span<std::byte> take() noexcept override { return take_for(1); }
    std::span<std::byte> take_for(std::size_t count) noexcept override {
      memory.resize(count);
      ++taken;
      return std::as_writable_bytes(std::span(memory));
    }
    std::size_t room() const noexcept override { return most; }
    void give_back(std::ptrdiff_t count) noexcept override { last = count; }
    std::size_t most = 0;
    std::string memory;
    int taken = 0;
    std::ptrdiff_t last = -2;
  } buffer;
  TlsPair pair;
  pair.establish();
  auto reader =
      spawn([&] { return pair.client.read_late(buffer); }, {.hub = Hub::current()->index()});
  until_parked(reader.handle(), WaitReason::io_read);
  EXPECT_EQ(buffer.taken, 0);
  ASSERT_TRUE(pair.server.write_all(net::bytes("hello")));
  EXPECT_EQ(reader.join().value(), 5u);
  EXPECT_EQ(buffer.memory, "hello");
  EXPECT_EQ(buffer.taken, 1);
  EXPECT_EQ(buffer.last, 5);
  EXPECT_EQ(pair.client.read_late(buffer, Deadline::now()).error(), Errc::timed_out);
  // No more than there is room for.
  buffer.most = 3;
  ASSERT_TRUE(pair.server.write_all(net::bytes("hello")));
  EXPECT_EQ(pair.client.read_late(buffer).value(), 3u);
  EXPECT_EQ(buffer.memory, "hel");
  EXPECT_EQ(pair.client.pending(), 2u);
  EXPECT_EQ(pair.client.read_late(buffer).value(), 2u);
  EXPECT_EQ(buffer.memory, "lo");
  EXPECT_EQ(pair.client.pending(), 0u);
  ASSERT_TRUE(pair.server.shutdown_write());
  EXPECT_EQ(pair.client.read_late(buffer).value(), 0u);
  EXPECT_EQ(buffer.taken, 3);
}

NET_TEST(TlsStream, BuffersAreWrittenInOrder) {
  TlsPair pair;
  pair.establish();
  std::string one = "one ";
  std::string two = "two ";
  std::string large = pattern(100'000);
  const iovec small[] = {{one.data(), one.size()}, {nullptr, 0}, {two.data(), two.size()}};
  const iovec big[] = {{one.data(), one.size()}, {large.data(), large.size()}, {nullptr, 0}};
  std::size_t written = 0;
  ASSERT_TRUE(pair.client.writev_all(small, {}, &written));
  EXPECT_EQ(written, 8u);
  auto writer = spawn([&] {
    EXPECT_TRUE(pair.client.writev_all(big));
    EXPECT_TRUE(pair.client.writev_all({}));
    EXPECT_TRUE(pair.client.write_all({}));
    return pair.client.shutdown_write();
  });
  EXPECT_TRUE(read_to_end(pair.server).value() == "one two one " + large);
  EXPECT_TRUE(writer.join());
}

// Of writers that come together none gets into another's message.
NET_TEST(TlsStream, MessagesStayWhole) {
  TlsPair pair;
  pair.establish();
  std::vector<JoinHandle<void>> writers;
  for (char c = 'a'; c < 'e'; ++c)
    writers.push_back(spawn(
        [&pair, c] { EXPECT_TRUE(pair.client.write_all(net::bytes(std::string(200'000, c)))); }));
  std::string all(800'000, '\0');
  ASSERT_EQ(pair.server.read_full(writable(all)).value(), all.size());
  for (std::size_t at = 0; at < all.size(); at += 200'000)
    EXPECT_EQ(all.substr(at, 200'000), std::string(200'000, all[at]));
  for (auto& writer : writers)
    EXPECT_TRUE(writer.join());
}

STREAM_TEST(TlsStream, TlsInTls) {
  TlsPair outer;
  outer.establish();
  auto client =
      Stream::client(std::move(outer.client), tls_world().client_context, {.host = "example.test"})
          .value();
  auto server = Stream::server(std::move(outer.server), tls_world().server_context).value();
  auto other = spawn([&] { return server.handshake(); });
  ASSERT_TRUE(client.handshake());
  ASSERT_TRUE(other.join());
  const std::string text = pattern(300'000);
  auto writer = spawn([&] {
    EXPECT_TRUE(client.write_all(net::bytes(text)));
    return client.shutdown_write();
  });
  EXPECT_TRUE(read_to_end(server).value() == text);
  EXPECT_TRUE(writer.join());
  client.close();
  EXPECT_EQ(read_text(client).error(), Errc::closed);
}

// On OS threads the calls block.
NET_TEST(TlsStream, ThreadsMayUseIt) {
  TlsPair pair;
  auto server = spawn([&] {
    const std::string text = read_text(pair.server).value();
    EXPECT_TRUE(pair.server.write_all(net::bytes(text)));
  });
  std::string answer;
  std::atomic<bool> done = false;
  std::thread thread([&] {
    EXPECT_TRUE(pair.client.write_all(net::bytes("from a thread")));
    answer = read_text(pair.client).value();
    done = true;
  });
  while (!done)
    ASSERT_TRUE(this_fiber::sleep_for(1ms));
  thread.join();
  EXPECT_EQ(answer, "from a thread");
  EXPECT_TRUE(server.join());
}

NET_TEST(TlsStream, TellsWhatWasAgreedUpon) {
  auto options = server_options();
  options.client_certificates = tls::ClientCertificates::optional;
  options.ca_pem = tls_world().authority.pem();
  auto with_certificate = client_options();
  with_certificate.identities.push_back(identity_of(tls_world().client));
  TlsPair pair(make_client(with_certificate), make_server(options));
  EXPECT_EQ(pair.client.channel_binding().error(), TlsErrc::not_established);
  EXPECT_EQ(pair.client.shutdown().error(), TlsErrc::not_established);
  EXPECT_FALSE(pair.client.version());
  pair.establish();
  EXPECT_EQ(pair.client.channel_binding().value(), pair.server.channel_binding().value());
  EXPECT_EQ(pair.client.channel_binding().value().size(), 32u);
  EXPECT_NE(pair.client.export_keying_material("EXPERIMENTAL one", {}, 20).value(),
            pair.client.export_keying_material("EXPERIMENTAL two", {}, 20).value());
  EXPECT_EQ(pair.client.peer_certificates().size(), 1u);
  EXPECT_EQ(pair.server.peer_certificates().size(), 1u);
  EXPECT_NE(pair.client.peer_certificates(), pair.server.peer_certificates());
  EXPECT_NE(dynamic_cast<net::TcpStream*>(pair.client.below()), nullptr);
}

}  // namespace
}  // namespace runloom::test
