// A ring by itself, on a plain thread: nothing of it needs a scheduler.
#include "net/uring.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <string>
#include <vector>

#include "support/fiber_test.hpp"
#include "support/race.hpp"
#include "support/syscall_faults.hpp"

namespace runloom::test {
namespace {

using net::Uring;
using net::UringOp;

// Keeps the outcomes, of which there must be one.
struct Kept : UringOp {
  Kept() noexcept : UringOp(&keep) {}
  static void keep(UringOp& op, int result, std::uint32_t flags) noexcept {
    auto& self = static_cast<Kept&>(op);
    ++self.outcomes;
    self.result = result;
    self.flags = flags;
  }
  int outcomes = 0;
  int result = 0;
  std::uint32_t flags = 0;
};

struct Sockets {
  Sockets() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, end), 0); }
  ~Sockets() {
    ::close(end[0]);
    ::close(end[1]);
  }
  int end[2];
};

void start_recv(Uring& ring, Kept& op, int fd, char& byte) {
  io_uring_sqe* sqe = ring.prepare();
  ASSERT_NE(sqe, nullptr);
  io_uring_prep_recv(sqe, fd, &byte, 1, 0);
  ring.start(*sqe, op);
}

void run_to_end(Uring& ring) {
  const HangGuard guard;
  while (ring.in_flight() != 0)
    ring.enter(-1);
}

TEST(Uring, DeliversACompletionOnce) {
  auto ring = Uring::make(16).value();
  EXPECT_FALSE(ring->has_work());
  Sockets sockets;
  Kept op;
  char byte = 0;
  start_recv(*ring, op, sockets.end[0], byte);
  EXPECT_TRUE(ring->has_entries());
  EXPECT_EQ(ring->enter(0), 0);
  EXPECT_FALSE(ring->has_entries());
  EXPECT_EQ(ring->in_flight(), 1u);
  EXPECT_EQ(ring->enter(1'000'000), -ETIME);
  ASSERT_EQ(::send(sockets.end[1], "x", 1, 0), 1);
  run_to_end(*ring);
  EXPECT_EQ(op.outcomes, 1);
  EXPECT_EQ(op.result, 1);
  EXPECT_EQ(byte, 'x');
}

TEST(Uring, WaitsNoLessThanItWasTold) {
  auto ring = Uring::make(16).value();
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(ring->enter(3'000'000), -ETIME);
  EXPECT_GE(monotonic_ns() - start, 3'000'000);
}

// Ten thousand operations on a ring of 16: no completion is lost, though the queue has no room.
TEST(Uring, MoreCompletionsThanTheQueueHoldsF04) {
  auto ring = Uring::make(16).value();
  std::vector<Kept> ops(10'000);
  for (Kept& op : ops) {
    io_uring_sqe* sqe = ring->prepare();
    ASSERT_NE(sqe, nullptr);
    io_uring_prep_nop(sqe);
    ring->start(*sqe, op);
  }
  run_to_end(*ring);
  for (const Kept& op : ops)
    ASSERT_EQ(op.outcomes, 1);
  EXPECT_GT(ring->overflows(), 0u);
}

TEST(Uring, CancelEndsAnOperation) {
  auto ring = Uring::make(16).value();
  Sockets sockets;
  std::deque<Kept> ops(100);
  std::vector<char> bytes(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i)
    start_recv(*ring, ops[i], sockets.end[0], bytes[i]);
  for (Kept& op : ops) {
    ring->cancel(op);
    ring->cancel(op);  // twice is as good as once
  }
  run_to_end(*ring);
  for (const Kept& op : ops) {
    ASSERT_EQ(op.outcomes, 1);
    EXPECT_EQ(op.result, -ECANCELED);
    ring->cancel(ops[0]);  // it isn't in flight any more
  }
  EXPECT_EQ(ring->enter(0), 0);
}

// A cancel at the moment of the completion: one outcome, and no byte is lost.
TEST(UringRace, CancelMeetsCompletionF08) {
  auto ring = Uring::make(64).value();
  Sockets sockets;
  const HangGuard guard;
  int received = 0, cancelled = 0, rounds = 0;
  RaceBudget budget;
  for (; rounds < 100'000 && (rounds < 1'000 || !budget.spent()); ++rounds) {
    Kept op;
    char byte = 0;
    start_recv(*ring, op, sockets.end[0], byte);
    if (rounds % 2 == 0) ring->enter(0);
    ASSERT_EQ(::send(sockets.end[1], "x", 1, 0), 1);
    if (rounds % 3 == 0) ring->enter(0);
    ring->cancel(op);
    while (op.in_flight)
      ring->enter(-1);
    ASSERT_EQ(op.outcomes, 1);
    if (op.result == 1) {
      ++received;
    } else {
      ASSERT_EQ(op.result, -ECANCELED);
      ++cancelled;
      ASSERT_EQ(::recv(sockets.end[0], &byte, 1, MSG_DONTWAIT), 1);
    }
    ASSERT_EQ(byte, 'x');
  }
  EXPECT_EQ(received + cancelled, rounds);
}

// Nothing is taken for now: no entry for an operation, but a cancel still reaches the kernel.
TEST(Uring, AFullRingRefusesOperationsAndKeepsCancels) {
  auto ring = Uring::make(16).value();
  Sockets sockets;
  char byte = 0;
  Kept first;
  start_recv(*ring, first, sockets.end[0], byte);
  ring->enter(0);
  std::deque<Kept> ops;
  {
    const Fault fault(Call::io_uring_enter, EBUSY, 1, 1'000);
    while (io_uring_sqe* sqe = ring->prepare()) {
      io_uring_prep_nop(sqe);
      ring->start(*sqe, ops.emplace_back());
      ASSERT_LT(ops.size(), 100u);
    }
    for (int i = 0; i < 100; ++i) {
      Kept never;
      ring->cancel(never);  // not in flight: takes no entry
    }
    ring->cancel(first);
    EXPECT_EQ(ring->enter(0), -EBUSY);
    EXPECT_EQ(ring->prepare(), nullptr);
  }
  run_to_end(*ring);
  EXPECT_EQ(first.result, -ECANCELED);
  for (const Kept& op : ops)
    EXPECT_EQ(op.outcomes, 1);
}

// F10: no wait for a completion that will not come; what was in flight lets its descriptor go.
TEST(Uring, EndsWithOperationsInFlightF10) {
  const HangGuard guard;
  Sockets sockets;
  Kept op;
  char byte = 0;
  {
    auto ring = Uring::make(16).value();
    start_recv(*ring, op, sockets.end[0], byte);
    ring->enter(0);
  }
  EXPECT_EQ(op.outcomes, 0);
}

TEST(Uring, ARefusalIsExplainedF02) {
  for (const int err : {ENOSYS, EPERM, EMFILE, ENOMEM}) {
    const Fault fault(Call::io_uring_setup, err, 1, 100);
    std::string why;
    const auto made = Uring::make(1024, &why);
    EXPECT_EQ(made.error(), errno_code(err));
    EXPECT_NE(why.find("io_uring_setup"), std::string::npos) << why;
    EXPECT_EQ(why.find("RLIMIT_MEMLOCK") != std::string::npos, err == ENOMEM) << why;
    // Without memory for a large one a smaller one is tried.
    EXPECT_EQ(fault.failed() > 1, err == ENOMEM);
  }
  const Fault fault(Call::io_uring_setup, ENOMEM, 1, 2);
  const auto small = Uring::make(1024);
  ASSERT_TRUE(small);
  EXPECT_EQ((*small)->completion_entries(), 1024u / 16 * 4);
}

// F02: many loops in one process.
TEST(Uring, ManyInOneProcessF02) {
  std::vector<std::unique_ptr<Uring>> rings;
  for (int i = 0; i < 200; ++i) {
    std::string why;
    auto ring = Uring::make(1024, &why);
    if (!ring) {
      EXPECT_FALSE(why.empty());
      break;
    }
    rings.push_back(std::move(*ring));
  }
  EXPECT_GT(rings.size(), 4u);
  for (auto& ring : rings) {
    Kept op;
    io_uring_sqe* sqe = ring->prepare();
    ASSERT_NE(sqe, nullptr);
    io_uring_prep_nop(sqe);
    ring->start(*sqe, op);
    while (op.in_flight)
      ring->enter(-1);
  }
}

}  // namespace
}  // namespace runloom::test
