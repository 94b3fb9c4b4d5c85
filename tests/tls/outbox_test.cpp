#include "outbox.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "runloom/sched/event.hpp"
#include "support/fiber_test.hpp"
#include "support/net_test.hpp"

namespace runloom::tls {
namespace {

using test::pattern;
using test::until_parked;

// Takes what its gate lets through, and parks otherwise.
class Gate final : public net::Stream {
 public:
  Result<std::size_t> read_some(std::span<std::byte>, Deadline) override { return std::size_t{0}; }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline) override {
    if (error) return Unexpected{error};
    if (room == 0) {
      if (auto ok = opened.wait(deadline); !ok) return Unexpected{ok.error()};
      if (error) return Unexpected{error};
    }
    const std::size_t count = std::min(room, data.size());
    written.append(reinterpret_cast<const char*>(data.data()), count);
    room -= count;
    return count;
  }
  Result<void> wait_readable(Deadline) override { return {}; }
  Result<void> shutdown_write() override { return {}; }
  void close() noexcept override {}
  void open(std::size_t bytes) {
    room = bytes;
    opened.set();
    opened.clear();
  }

  std::string written;
  std::size_t room = 0;
  std::error_code error;
  Event opened;
};

struct Sending {
  Mutex lock;
  Outbox out;
  Gate gate;
  bool append(const std::string& text) {
    const std::unique_lock hold(lock);
    return out.append(net::bytes(text));
  }
  Result<void> flush(Deadline deadline = {}) {
    std::unique_lock hold(lock);
    return out.flush(hold, gate, out.queued(), deadline);
  }
};

TEST(Outbox, KeepsTheOrderOverManyChunks) {
  test::run_fiber_test(test::fiber_test_options(1), [] {
    Sending s;
    s.gate.room = 10'000'000;
    std::string all;
    for (std::size_t i = 0; i < 200; ++i) {
      const std::string text = pattern(i * 37 % 9'000, all.size());
      ASSERT_TRUE(s.append(text));
      all += text;
      if (i % 7 == 0) {
        ASSERT_TRUE(s.flush());
      }
    }
    ASSERT_TRUE(s.flush());
    EXPECT_TRUE(s.gate.written == all);
    EXPECT_EQ(s.out.waiting(), 0u);
  });
}

// One sends; the second waits for it, and goes on when it is cancelled.
TEST(Outbox, TheRoleIsHandedOver) {
  test::run_fiber_test(test::fiber_test_options(1), [] {
    Sending s;
    ASSERT_TRUE(s.append("first "));
    auto first = spawn([&] { return s.flush(); });
    until_parked(first.handle(), WaitReason::event);
    ASSERT_TRUE(s.append("second"));
    auto second = spawn([&] { return s.flush(); });
    until_parked(second.handle(), WaitReason::cond_var);
    first.handle().cancel();
    EXPECT_EQ(first.join().error(), Errc::cancelled);
    until_parked(second.handle(), WaitReason::event);
    s.gate.open(100);
    EXPECT_TRUE(second.join());
    EXPECT_EQ(s.gate.written, "first second");
  });
}

TEST(Outbox, AFailureIsForGood) {
  test::run_fiber_test(test::fiber_test_options(1), [] {
    Sending s;
    ASSERT_TRUE(s.append("lost"));
    EXPECT_EQ(s.flush(Deadline::now()).error(), Errc::timed_out);
    EXPECT_FALSE(s.out.error());
    auto first = spawn([&] { return s.flush(); });
    until_parked(first.handle(), WaitReason::event);
    auto second = spawn([&] { return s.flush(); });
    until_parked(second.handle(), WaitReason::cond_var);
    s.gate.error = errno_code(ECONNRESET);
    s.gate.open(1);
    EXPECT_EQ(first.join().error(), errno_code(ECONNRESET));
    EXPECT_EQ(second.join().error(), errno_code(ECONNRESET));
    s.gate.error = {};
    EXPECT_EQ(s.flush().error(), errno_code(ECONNRESET));
  });
}

}  // namespace
}  // namespace runloom::tls
