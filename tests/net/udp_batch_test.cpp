// UdpEndpoint's batches and segments.
#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "support/syscall_faults.hpp"
#include "support/udp.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Address;
using net::bytes;
using net::OutDatagram;
using net::UdpEndpoint;

const net::UdpOptions kRoomy{.send_buffer = 1 << 20, .receive_buffer = 1 << 20};

// Takes what has come, until so many datagrams are there.
std::vector<std::string> receive_all(const UdpEndpoint& endpoint, std::size_t count) {
  std::vector<std::string> all;
  while (all.size() < count)
    all.push_back(receive(endpoint, Deadline::after(5s)).value());
  return all;
}

std::vector<std::string> numbered(std::size_t count, std::size_t size = 0) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i)
    texts.push_back(size == 0 ? std::to_string(i) : pattern(size, i));
  return texts;
}

std::vector<OutDatagram> to(const Address& peer, const std::vector<std::string>& texts) {
  std::vector<OutDatagram> out;
  for (const std::string& text : texts)
    out.push_back({.data = bytes(text), .peer = peer});
  return out;
}

// ---------------------------------------------------------------- receive

NET_TEST(UdpBatch, TakesWhatHasComeWithSenders) {
  Bound server(kRoomy), one, two;
  DatagramBuffers batch(10, 8);
  EXPECT_EQ(server.endpoint.recv_many(batch.all(), Deadline::after(5ms)).error(), Errc::timed_out);
  EXPECT_EQ(server.endpoint.recv_many({}).value(), 0u);
  ASSERT_TRUE(one.endpoint.send_to(bytes("a"), server.address));
  ASSERT_TRUE(two.endpoint.send_to(bytes(""), server.address));
  ASSERT_TRUE(one.endpoint.send_to(bytes("much too long"), server.address));
  ASSERT_EQ(server.endpoint.recv_many(batch.all()).value(), 3u);
  EXPECT_EQ(batch.text(0), "a");
  EXPECT_EQ(batch[0].peer, one.address);
  EXPECT_EQ(batch.text(1), "");
  EXPECT_EQ(batch[1].peer, two.address);
  EXPECT_EQ(batch.text(2), "much too");
  EXPECT_EQ(batch[2].full_size, 13u);
  EXPECT_TRUE(batch[2].truncated());
  EXPECT_EQ(server.endpoint.recv_many(batch.all(), Deadline::now()).error(), Errc::timed_out);
}

NET_TEST(UdpBatch, TakesNoMoreThanThereIsRoomFor) {
  Bound server(kRoomy), client;
  for (const std::string& text : numbered(150))
    ASSERT_TRUE(client.endpoint.send_to(bytes(text), server.address));
  DatagramBuffers batch(100, 8);
  ASSERT_EQ(server.endpoint.recv_many(batch.all().first(20)).value(), 20u);
  EXPECT_EQ(batch.text(19), "19");
  ASSERT_EQ(server.endpoint.recv_many(batch.all()).value(), 64u);
  EXPECT_EQ(batch.text(0), "20");
  ASSERT_EQ(server.endpoint.recv_many(batch.all()).value(), 64u);
  ASSERT_EQ(server.endpoint.recv_many(batch.all()).value(), 2u);
  EXPECT_EQ(batch.text(1), "149");
}

NET_TEST(UdpBatch, ParksAndEndsAsOneReceiveDoes) {
  Bound server;
  for (const char* end : {"data", "cancel", "close"}) {
    auto reader = spawn([&] {
      DatagramBuffers batch(4, 8);
      return server.endpoint.recv_many(batch.all());
    });
    until_parked(reader.handle(), WaitReason::io_read);
    if (*end == 'd') {
      ASSERT_TRUE(server.endpoint.send_to(bytes("x"), server.address));
      EXPECT_EQ(reader.join().value(), 1u);
    } else if (end[1] == 'a') {
      reader.cancel();
      EXPECT_EQ(reader.join().error(), Errc::cancelled);
    } else {
      server.endpoint.close();
      EXPECT_EQ(reader.join().error(), Errc::closed);
    }
  }
}

// ---------------------------------------------------------------- send

// Runs of one peer are joined and cut up again; the receiver can't tell.
NET_TEST(UdpBatch, SendsInOrderWhateverGoesTogether) {
  Bound one(kRoomy), two(kRoomy), client(kRoomy);
  std::vector<OutDatagram> out;
  std::vector<std::string> texts;
  std::vector<std::string> expected[2];
  // Sizes that begin runs, end them, and stand alone; empty ones; peers that alternate.
  const std::array<std::size_t, 14> sizes{100, 100, 100, 40, 100, 0, 0, 7, 8, 8, 8, 1400, 1400, 3};
  texts.reserve(400);
  for (std::size_t i = 0; i < 400; ++i) {
    const std::size_t to_two = i % 40 > 30 ? i % 2 : 0;
    texts.push_back(pattern(sizes[i % sizes.size()], i));
    expected[to_two].push_back(texts.back());
    out.push_back({.data = bytes(texts.back()), .peer = to_two ? two.address : one.address});
  }
  EXPECT_EQ(client.endpoint.send_many(out).value(), out.size());
  EXPECT_EQ(receive_all(one.endpoint, expected[0].size()), expected[0]);
  EXPECT_EQ(receive_all(two.endpoint, expected[1].size()), expected[1]);
  EXPECT_EQ(client.endpoint.send_many(std::span<const OutDatagram>()).value(), 0u);
}

NET_TEST(UdpBatch, OneCallSendsARun) {
  if (!net::udp_features().segmentation) GTEST_SKIP() << "the kernel has no UDP_SEGMENT";
  Bound server(kRoomy), client(kRoomy);
  const auto texts = numbered(64, 100);
  const long before = calls(Call::sendmmsg);
  EXPECT_EQ(client.endpoint.send_many(to(server.address, texts)).value(), 64u);
  EXPECT_EQ(calls(Call::sendmmsg) - before, 1);
  EXPECT_EQ(receive_all(server.endpoint, 64), texts);
  // A receiver that lets the kernel coalesce gets it in one piece.
  Bound joined({.receive_buffer = 1 << 20, .coalesce_received = true});
  ASSERT_TRUE(joined.endpoint.coalesces_received());
  EXPECT_EQ(client.endpoint.send_many(to(joined.address, texts)).value(), 64u);
  std::string buffer(65'536, '\0');
  const auto run = joined.endpoint.recv_from(writable(buffer)).value();
  EXPECT_EQ(run.segment_size, 100u);
  ASSERT_EQ(run.segments(), 64u);
  for (std::size_t i = 0; i < 64; ++i)
    EXPECT_EQ(text_of(run.segment(i)), texts[i]);
}

NET_TEST(UdpBatch, AConnectedOneSendsToItsPeer) {
  Bound server(kRoomy);
  auto client = UdpEndpoint::connect(server.address).value();
  const auto texts = numbered(50);
  EXPECT_EQ(client.send_many(to(Address(), texts)).value(), 50u);
  EXPECT_EQ(receive_all(server.endpoint, 50), texts);
  Bound unconnected;
  EXPECT_EQ(unconnected.endpoint.send_many(to(Address(), texts)).error(), errno_code(EDESTADDRREQ));
}

NET_TEST(UdpBatch, AWrongSourceStopsTheBatchThere) {
  Bound server, client;
  std::array<OutDatagram, 3> out{};
  for (auto& each : out)
    each = {.data = bytes("x"), .peer = server.address};
  out[1].local = Address::loopback_ipv6();
  EXPECT_EQ(client.endpoint.send_many(out).value(), 1u);
  EXPECT_EQ(client.endpoint.send_many(std::span(out).subspan(1)).error(), errno_code(EAFNOSUPPORT));
}

NET_TEST(UdpBatch, EchoesABatch) {
  Bound server(kRoomy);
  auto echo = spawn([&]() -> Result<void> {
    DatagramBuffers batch(64, 2000);
    for (;;) {
      RUNLOOM_TRY(const std::size_t count, server.endpoint.recv_many(batch.all()));
      const std::span<const net::Datagram> got = batch.all().first(count);
      RUNLOOM_TRY(const std::size_t sent, server.endpoint.send_many(got));
      EXPECT_EQ(sent, count);
    }
  });
  std::vector<JoinHandle<Result<void>>> clients;
  for (std::size_t c = 0; c < 8; ++c)
    clients.push_back(spawn([&server, c]() -> Result<void> {
      const auto client = UdpEndpoint::connect(server.address).value();
      for (std::size_t round = 0; round < 20; ++round) {
        std::vector<std::string> texts;
        for (std::size_t i = 0; i < 10; ++i)
          texts.push_back(pattern(c + 50, 100 * round + i));
        EXPECT_EQ(client.send_many(to(Address(), texts)).value(), 10u);
        EXPECT_EQ(receive_all(client, 10), texts);
      }
      return {};
    }));
  for (auto& client : clients)
    EXPECT_TRUE(client.join());
  echo.cancel();
  EXPECT_EQ(echo.join().error(), Errc::cancelled);
}

// ---------------------------------------------------------------- segments

NET_TEST(UdpBatch, SendsSegments) {
  Bound server(kRoomy), client(kRoomy);
  const auto send = [&](std::size_t size, std::size_t segment) {
    const std::string all = pattern(size);
    EXPECT_EQ(client.endpoint.send_segments(bytes(all), segment, server.address).value(), size);
    std::string joined;
    for (std::size_t at = 0; at < size; at += segment) {
      const std::string got = receive(server.endpoint, Deadline::after(5s)).value();
      EXPECT_EQ(got.size(), std::min(segment, size - at));
      joined += got;
    }
    EXPECT_EQ(joined, all);
  };
  send(1, 1);
  send(1000, 1000);
  send(1000, 999);
  send(1000, 2000);
  send(100 * 300, 100);  // more than one call takes
  send(200'000, 1200);   // more than one message takes
  EXPECT_EQ(client.endpoint.send_segments({}, 100, server.address).value(), 0u);
  EXPECT_EQ(client.endpoint.send_segments(bytes("x"), 0, server.address).error(),
            errno_code(EINVAL));
  EXPECT_EQ(receive(server.endpoint, Deadline::after(1ms)).error(), Errc::timed_out);
}

// What came coalesced is echoed in the segments that it came in.
NET_TEST(UdpBatch, EchoesCoalescedRuns) {
  Bound server({.receive_buffer = 1 << 20, .coalesce_received = true}), client(kRoomy);
  const auto texts = numbered(20, 500);
  ASSERT_TRUE(client.endpoint.send_to(bytes("first"), server.address));
  ASSERT_EQ(client.endpoint.send_many(to(server.address, texts)).value(), 20u);
  ASSERT_TRUE(client.endpoint.send_to(bytes("last"), server.address));
  DatagramBuffers batch(64, 65'536);
  for (std::size_t segments = 0; segments < 22;) {
    const std::size_t count = server.endpoint.recv_many(batch.all()).value();
    const std::span<const net::Datagram> got = batch.all().first(count);
    for (const net::Datagram& each : got)
      segments += each.segments();
    EXPECT_EQ(server.endpoint.send_many(got).value(), count);
  }
  auto expected = texts;
  expected.insert(expected.begin(), "first");
  expected.push_back("last");
  EXPECT_EQ(receive_all(client.endpoint, 22), expected);
}

// A run that the kernel or the interface refuses goes one by one.
NET_TEST(UdpBatch, DoesWithoutSegmentationWhereItIsRefused) {
  Bound server(kRoomy), client(kRoomy);
  const auto texts = numbered(30, 200);
  for (const int err : {EIO, EINVAL, EMSGSIZE, EOPNOTSUPP, ENOPROTOOPT}) {
    const long before = calls(Call::sendmmsg);
    Fault refused(Call::sendmmsg, err);
    const auto sent = client.endpoint.send_many(to(server.address, texts));
    if (!net::udp_features().segmentation) {
      EXPECT_EQ(sent.error(), errno_code(err));
      continue;
    }
    EXPECT_EQ(sent.value(), 30u);
    EXPECT_EQ(calls(Call::sendmmsg) - before, 2);
    EXPECT_EQ(receive_all(server.endpoint, 30), texts);
  }
}

// ---------------------------------------------------------------- backpressure

NET_TEST(UdpBatch, ASendWaitsForRoom) {
  Bound server(kRoomy), client(kRoomy);
  const auto texts = numbered(10);
  Fault full(Call::sendmmsg, EAGAIN);
  EXPECT_EQ(client.endpoint.send_many(to(server.address, texts)).value(), 10u);
  EXPECT_EQ(full.failed(), 1);
  EXPECT_EQ(receive_all(server.endpoint, 10), texts);
}

NET_TEST(UdpBatch, ADeadlineEndsABatchThatWaitsForRoom) {
  Bound server(kRoomy), client(kRoomy);
  // More than one call takes, and none of it goes together.
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < 100; ++i)
    texts.push_back(pattern(i + 1));
  const auto out = to(server.address, texts);
  {
    Fault full(Call::sendmmsg, EAGAIN, 2, 1 << 20);
    EXPECT_EQ(client.endpoint.send_many(out, Deadline::after(20ms)).value(), 64u);
  }
  EXPECT_EQ(receive_all(server.endpoint, 64).back(), texts[63]);
  {
    Fault full(Call::sendmmsg, EAGAIN, 1, 1 << 20);
    EXPECT_EQ(client.endpoint.send_many(out, Deadline::after(5ms)).error(), Errc::timed_out);
  }
}

}  // namespace
}  // namespace runloom::test
