// Reads, writes, key updates, deadlines, cancels and closes of the same connections at a time.
#include <chrono>
#include <string>
#include <vector>

#include "runloom/tls/stream.hpp"
#include "support/race.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using tls::Stream;
using tls::TlsErrc;

bool ends_the_call(std::error_code error) {
  return error == Errc::timed_out || error == Errc::cancelled;
}

// Everything that was counted as written arrives, in order, whatever cut the calls off.
NET_TEST(TlsRace, NothingIsLostOrTwiceL05L06) {
  std::uint64_t seed = 0;
  for (RaceBudget budget; !budget.spent();) {
    TlsPair pair;
    pair.establish();
    const std::size_t size = 600'000;
    const std::string text = pattern(size);
    const auto write = [&](Stream& stream, std::uint64_t stream_seed) {
      Random random(stream_seed);
      std::size_t at = 0;
      while (at < size) {
        const auto part = std::string_view(text).substr(at, 1 + random.below(60'000));
        const Deadline deadline =
            random.one_in(2) ? Deadline() : Deadline::after(1us * random.below(300));
        if (random.one_in(3)) {
          const auto count = stream.write_some(net::bytes(part), deadline);
          ASSERT_TRUE(count || ends_the_call(count.error())) << count.error().message();
          if (count) at += *count;
        } else {
          std::size_t written = 0;
          const auto done = stream.write_all(net::bytes(part), deadline, &written);
          ASSERT_TRUE(done || ends_the_call(done.error())) << done.error().message();
          at += written;
        }
        if (random.one_in(16)) {
          const auto updated = stream.update_keys(random.one_in(2), Deadline::after(1ms));
          ASSERT_TRUE(updated || ends_the_call(updated.error())) << updated.error().message();
        }
      }
      ASSERT_TRUE(stream.shutdown_write());
    };
    const auto read = [&](Stream& stream, std::uint64_t stream_seed) {
      Random random(stream_seed);
      std::string got;
      std::string buffer(70'000, '\0');
      for (;;) {
        const std::size_t most = 1 + random.below(random.one_in(4) ? 70'000 : 3'000);
        const Deadline deadline =
            random.one_in(2) ? Deadline() : Deadline::after(1us * random.below(300));
        if (random.one_in(8)) static_cast<void>(stream.wait_readable(deadline));
        const auto count = stream.read_some(writable(buffer).first(most), deadline);
        ASSERT_TRUE(count || ends_the_call(count.error())) << count.error().message();
        if (!count) continue;
        if (*count == 0) break;
        got.append(buffer, 0, *count);
      }
      EXPECT_TRUE(got == text);
    };
    std::vector<JoinHandle<void>> fibers;
    for (Stream* stream : {&pair.client, &pair.server}) {
      fibers.push_back(spawn([&, stream, s = ++seed] { write(*stream, s); }));
      fibers.push_back(spawn([&, stream, s = ++seed] { read(*stream, s); }));
    }
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
  }
}

// Close at any moment, the handshake's included.
NET_TEST(TlsRace, CloseAtAnyTime) {
  std::uint64_t seed = 0;
  const std::string text = pattern(40'000);
  for (RaceBudget budget; !budget.spent();) {
    TlsPair pair;
    std::vector<JoinHandle<void>> fibers;
    for (Stream* stream : {&pair.client, &pair.server}) {
      fibers.push_back(spawn([&text, stream] {
        while (stream->write_all(net::bytes(text))) {
        }
      }));
      for (int i = 0; i < 2; ++i)
        fibers.push_back(spawn([stream] {
          for (;;) {
            const auto got = read_text(*stream, 5'000);
            if (!got || got->empty()) return;
          }
        }));
      fibers.push_back(spawn([stream, s = ++seed] {
        Random random(s);
        for (auto turns = random.below(60); turns > 0; --turns)
          this_fiber::yield();
        if (random.one_in(3)) static_cast<void>(stream->shutdown(Deadline::after(1ms)));
        stream->close();
      }));
    }
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
  }
}

// Cancelled in the middle, a handshake goes on, a read loses nothing, a message that was cut off
// ends the writing.
NET_TEST(TlsRace, CancelAtAnyTime) {
  std::uint64_t seed = 0;
  const std::string text = pattern(300'000);
  for (RaceBudget budget; !budget.spent();) {
    TlsPair pair;
    auto writer = spawn([&] {
      std::size_t at = 0;
      while (at < text.size()) {
        std::size_t written = 0;
        const auto sent =
            pair.client.write_all(net::bytes(std::string_view(text).substr(at)), {}, &written);
        at += written;
        if (sent) break;
        EXPECT_EQ(sent.error(), Errc::cancelled) << sent.error().message();
        this_fiber::handle().uncancel();
      }
      Result<void> ended;
      while (!(ended = pair.client.shutdown_write())) {
        EXPECT_EQ(ended.error(), Errc::cancelled) << ended.error().message();
        this_fiber::handle().uncancel();
      }
    });
    auto reader = spawn([&] {
      std::string got;
      std::string buffer(20'000, '\0');
      for (;;) {
        const auto count = pair.server.read_some(writable(buffer));
        if (!count) {
          EXPECT_EQ(count.error(), Errc::cancelled) << count.error().message();
          this_fiber::handle().uncancel();
          continue;
        }
        if (*count == 0) break;
        got.append(buffer, 0, *count);
      }
      EXPECT_TRUE(got == text);
    });
    Random random(++seed);
    while (!(writer.done() && reader.done())) {
      for (auto turns = random.below(20); turns > 0; --turns)
        this_fiber::yield();
      (random.one_in(2) ? writer.handle() : reader.handle()).cancel();
      ASSERT_TRUE(this_fiber::sleep_for(50us));
    }
    EXPECT_TRUE(writer.join());
    EXPECT_TRUE(reader.join());
  }
}

// What fails on one connection is told there, and nowhere else on the thread.
NET_TEST(TlsRace, ErrorsDoNotCrossL08) {
  static const tls::Context strangers = make_client({.ca_pem = tls_world().stranger.pem()});
  std::vector<JoinHandle<void>> fibers;
  std::atomic<bool> over = false;
  std::atomic<int> failed = 0;
  for (int i = 0; i < 3; ++i) {
    fibers.push_back(spawn([&] {  // one that works
      TlsPair pair;
      pair.establish();
      while (!over) {
        ASSERT_TRUE(pair.client.write_all(net::bytes("ping")));
        ASSERT_EQ(read_text(pair.server).value(), "ping");
        ASSERT_EQ(read_text(pair.server, 10, Deadline::now()).error(), Errc::timed_out);
        ASSERT_TRUE(pair.server.write_all(net::bytes("pong")));
        ASSERT_EQ(read_text(pair.client).value(), "pong");
      }
    }));
    fibers.push_back(spawn([&] {  // one whose certificate is refused
      while (!over) {
        TlsPair pair(strangers, tls_world().server_context);
        const auto done = pair.handshake();
        ASSERT_EQ(done.client.error(), TlsErrc::certificate) << done.client.error().message();
        ++failed;
      }
    }));
  }
  fibers.push_back(spawn([&] {
    for (RaceBudget budget; !budget.spent();)
      this_fiber::yield();
    over = true;
  }));
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace runloom::test
