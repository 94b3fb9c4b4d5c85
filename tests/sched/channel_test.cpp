#include "runloom/sched/channel.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::until_parked;

FIBER_TEST(Channel, UnbufferedSendWaitsForTheReceiver) {
  Channel<int> channel;
  bool sent = false;
  auto sender = spawn([&] {
    EXPECT_TRUE(channel.send(7));
    sent = true;
  });
  until_parked(sender.handle(), WaitReason::channel_send);
  EXPECT_FALSE(sent);
  EXPECT_EQ(channel.recv().value(), 7);
  EXPECT_TRUE(sender.join());
  EXPECT_TRUE(sent);
}

FIBER_TEST(Channel, UnbufferedReceiveWaitsForTheSender) {
  Channel<std::string> channel;
  auto receiver = spawn([&] { return channel.recv(); });
  until_parked(receiver.handle(), WaitReason::channel_recv);
  EXPECT_TRUE(channel.try_send("hello"));  // somebody waits, so it need not park
  EXPECT_EQ(receiver.join().value(), "hello");
}

FIBER_TEST(Channel, BufferIsFifo) {
  Channel<int> channel(3);
  EXPECT_EQ(channel.capacity(), 3u);
  for (int round = 0; round < 5; ++round) {  // around the ring
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(channel.send(round * 10 + i));
    EXPECT_EQ(channel.size(), 3u);
    EXPECT_EQ(channel.try_send(99).error(), Errc::would_block);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(channel.recv().value(), round * 10 + i);
    EXPECT_EQ(channel.try_recv().error(), Errc::would_block);
  }
}

FIBER_TEST(Channel, TryOperationsNeedAPeerWithoutBuffer) {
  Channel<int> channel;
  EXPECT_EQ(channel.try_send(1).error(), Errc::would_block);
  EXPECT_EQ(channel.try_recv().error(), Errc::would_block);
  auto sender = spawn([&] { EXPECT_TRUE(channel.send(5)); });
  until_parked(sender.handle(), WaitReason::channel_send);
  EXPECT_EQ(channel.try_send(1).error(), Errc::would_block);
  EXPECT_EQ(channel.try_recv().value(), 5);
  EXPECT_TRUE(sender.join());
}

FIBER_TEST(Channel, ParkedSendersAreServedInOrder) {
  for (std::size_t capacity : {0u, 2u}) {
    Channel<int> channel(capacity);
    const int buffered = static_cast<int>(capacity);
    for (int i = 0; i < buffered; ++i)
      EXPECT_TRUE(channel.send(int{i}));
    std::vector<JoinHandle<Result<void>>> senders;
    for (int i = 0; i < 5; ++i) {
      senders.push_back(spawn([&channel, value = buffered + i] { return channel.send(value); }));
      until_parked(senders.back().handle(), WaitReason::channel_send);
    }
    for (int i = 0; i < buffered + 5; ++i)
      EXPECT_EQ(channel.recv().value(), i);
    for (auto& sender : senders)
      EXPECT_TRUE(sender.join());
  }
}

FIBER_TEST(Channel, ParkedReceiversAreServedInOrder) {
  for (std::size_t capacity : {0u, 2u}) {
    Channel<int> channel(capacity);
    std::vector<JoinHandle<Result<int>>> receivers;
    for (int i = 0; i < 5; ++i) {
      receivers.push_back(spawn([&] { return channel.recv(); }));
      until_parked(receivers.back().handle(), WaitReason::channel_recv);
    }
    for (int i = 0; i < 5; ++i)
      EXPECT_TRUE(channel.try_send(int{i}));
    EXPECT_EQ(channel.size(), 0u);
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(receivers[static_cast<std::size_t>(i)].join().value(), i);
  }
}

FIBER_TEST(Channel, CloseLetsReceiversDrain) {
  Channel<int> channel(4);
  EXPECT_TRUE(channel.send(1));
  EXPECT_TRUE(channel.send(2));
  EXPECT_FALSE(channel.closed());
  EXPECT_TRUE(channel.close());
  EXPECT_TRUE(channel.closed());
  EXPECT_EQ(channel.send(3).error(), Errc::closed);
  EXPECT_EQ(channel.try_send(3).error(), Errc::closed);
  EXPECT_EQ(channel.recv().value(), 1);
  EXPECT_EQ(channel.try_recv().value(), 2);
  EXPECT_EQ(channel.recv().error(), Errc::closed);
  EXPECT_EQ(channel.try_recv().error(), Errc::closed);
  EXPECT_EQ(channel.close().error(), Errc::closed);
}

FIBER_TEST(Channel, CloseWakesEveryone) {
  Channel<int> empty;
  Channel<int> full(1);
  EXPECT_TRUE(full.send(1));
  std::vector<JoinHandle<Result<int>>> receivers;
  std::vector<JoinHandle<Result<void>>> senders;
  for (int i = 0; i < 3; ++i) {
    receivers.push_back(spawn([&] { return empty.recv(); }));
    senders.push_back(spawn([&] { return full.send(2); }));
    until_parked(receivers.back().handle(), WaitReason::channel_recv);
    until_parked(senders.back().handle(), WaitReason::channel_send);
  }
  EXPECT_TRUE(empty.close());
  EXPECT_TRUE(full.close());
  for (auto& receiver : receivers)
    EXPECT_EQ(receiver.join().error(), Errc::closed);
  for (auto& sender : senders)
    EXPECT_EQ(sender.join().error(), Errc::closed);
  EXPECT_EQ(full.recv().value(), 1);
  EXPECT_EQ(full.recv().error(), Errc::closed);
}

FIBER_TEST(Channel, ValueIsMovedOnlyOnSuccess) {
  using Value = std::unique_ptr<int>;
  Channel<Value> channel(1);
  Value value = std::make_unique<int>(1);
  EXPECT_TRUE(channel.send(std::move(value)));
  EXPECT_EQ(value, nullptr);

  value = std::make_unique<int>(2);
  EXPECT_EQ(channel.try_send(std::move(value)).error(), Errc::would_block);
  EXPECT_EQ(channel.send(std::move(value), Deadline::now()).error(), Errc::timed_out);
  // Not moved from: it did not go through.  NOLINTNEXTLINE(bugprone-use-after-move)
  EXPECT_EQ(*value, 2);
  EXPECT_TRUE(channel.close());
  EXPECT_EQ(channel.send(std::move(value)).error(), Errc::closed);
  EXPECT_EQ(*value, 2);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(*channel.recv().value(), 1);
}

// Counts what lives.
struct Counted {
  explicit Counted(int* count) : live(count) { ++*live; }
  Counted(Counted&& other) noexcept : live(other.live) { ++*live; }
  Counted& operator=(Counted&&) = delete;
  ~Counted() { --*live; }
  int* live;
};

FIBER_TEST(Channel, DestroysEachValueOnce) {
  int live = 0;
  {
    Channel<Counted> channel(3);
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(channel.send(Counted(&live)));
    EXPECT_EQ(live, 3);
    EXPECT_TRUE(channel.recv());
    EXPECT_EQ(live, 2);
    EXPECT_TRUE(channel.send(Counted(&live)));  // the ring has wrapped
    EXPECT_EQ(live, 3);
    EXPECT_EQ(channel.try_send(Counted(&live)).error(), Errc::would_block);
    EXPECT_EQ(live, 3);
  }
  EXPECT_EQ(live, 0);
}

FIBER_TEST(Channel, KeepsAlignment) {
  struct alignas(64) Wide {
    std::array<std::uint64_t, 8> words;
  };
  Channel<Wide> channel(3);
  for (std::uint64_t i = 0; i < 3; ++i)
    EXPECT_TRUE(channel.send(Wide{{i}}));
  channel.for_each_buffered([expected = std::uint64_t{0}](Wide& wide) mutable {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&wide) % 64, 0u);
    EXPECT_EQ(wide.words[0], expected++);
  });
  auto sender = spawn([&] { return channel.send(Wide{{3}}); });
  for (std::uint64_t i = 0; i < 4; ++i)
    EXPECT_EQ(channel.recv().value().words[0], i);
  EXPECT_TRUE(sender.join());
}

FIBER_TEST(Channel, WhoTimedOutTakesNothing) {
  Channel<int> channel;
  EXPECT_EQ(channel.recv(Deadline::after(1ms)).error(), Errc::timed_out);
  EXPECT_EQ(channel.try_send(1).error(), Errc::would_block);  // nobody is left in the list
  EXPECT_EQ(channel.send(1, Deadline::after(1ms)).error(), Errc::timed_out);
  EXPECT_EQ(channel.try_recv().error(), Errc::would_block);
}

FIBER_TEST(Channel, CancelledReceiverLetsTheNextTakeTheValue) {
  Channel<int> channel;
  auto first = spawn([&] { return channel.recv(); });
  until_parked(first.handle(), WaitReason::channel_recv);
  auto second = spawn([&] { return channel.recv(); });
  until_parked(second.handle(), WaitReason::channel_recv);
  first.cancel();
  EXPECT_EQ(first.join().error(), Errc::cancelled);
  EXPECT_TRUE(channel.try_send(3));
  EXPECT_EQ(second.join().value(), 3);
}

FIBER_TEST(Channel, ValueWinsOverCancel) {
  Channel<int> channel(1);
  EXPECT_TRUE(channel.send(4));
  CancelScope scope;
  scope.cancel();
  EXPECT_EQ(channel.recv().value(), 4);  // need not park
  EXPECT_EQ(channel.recv().error(), Errc::cancelled);
  EXPECT_TRUE(channel.send(5));
  EXPECT_EQ(channel.send(6).error(), Errc::cancelled);
}

FIBER_TEST(Channel, S18_OsThreadsSendAndReceive) {
  Channel<int> requests;
  Channel<int> answers(2);
  test::ForeignThreads threads;
  threads.start([&] {
    while (auto value = requests.recv())
      EXPECT_TRUE(answers.send(*value + 1));
    EXPECT_TRUE(answers.close());
  });
  for (int i = 0; i < 100; ++i) {
    auto sender = spawn([&requests, i] { return requests.send(int{i}); });
    EXPECT_EQ(answers.recv().value_or(-1), i + 1);
    EXPECT_TRUE(sender.join());
  }
  EXPECT_TRUE(requests.close());
  EXPECT_EQ(answers.recv().error(), Errc::closed);
  threads.join();
}

TEST(ChannelThread, S18_TwoOsThreadsNeedNoScheduler) {
  test::HangGuard guard;
  Channel<int> channel;
  std::thread sender([&] {
    for (int i = 0; i < 1000; ++i)
      EXPECT_TRUE(channel.send(int{i}));
    EXPECT_EQ(channel.send(0, Deadline::after(1ms)).error(), Errc::timed_out);
    EXPECT_TRUE(channel.close());
  });
  for (int i = 0; i < 1000; ++i)
    EXPECT_EQ(channel.recv().value(), i);
  sender.join();
  EXPECT_EQ(channel.recv().error(), Errc::closed);
}

FIBER_TEST(Channel, RegistryNamesTheChannel) {
  Channel<int> channel;
  auto receiver = spawn([&] { return channel.recv(); });
  until_parked(receiver.handle(), WaitReason::channel_recv);
  for (const FiberInfo& info : Scheduler::current()->fibers()) {
    if (info.id == receiver.handle().id()) {
      EXPECT_EQ(info.object, &channel.core());
    }
  }
  EXPECT_TRUE(channel.close());
  EXPECT_EQ(receiver.join().error(), Errc::closed);
}

using ChannelDeathTest = ::testing::Test;

TEST(ChannelDeathTest, DestroyingAChannelThatSomebodyWaitsIn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)run(
                   [] {
                     auto channel = std::make_unique<Channel<int>>();
                     auto receiver = spawn([&] { return channel->recv(); });
                     this_fiber::yield();
                     channel.reset();
                   },
                   Options{}),
               "a channel was destroyed while somebody waits");
}

// ---------------------------------------------------------------- races

struct Message {
  std::uint32_t producer;
  std::uint32_t number;
};

// Producers and consumers, fibers on both hubs and OS threads, give up at random: by deadline or
// because they are cancelled. What was sent arrives once, and in order per producer and consumer.
void exchange(std::size_t capacity) {
  constexpr std::uint32_t kProducers = 6;
  constexpr std::uint32_t kConsumers = 6;
  Channel<Message> channel(capacity);
  std::array<std::vector<std::uint32_t>, kProducers> sent;
  std::array<std::vector<Message>, kConsumers> received;
  const test::RaceBudget budget;

  auto produce = [&](std::uint32_t id) {
    test::Random random(id);
    for (std::uint32_t number = 0; !budget.spent(); ++number) {
      const Message message{id, number};
      Result<void> done;
      if (random.one_in(4)) {
        done = channel.try_send(message);
      } else if (random.one_in(3)) {
        done = channel.send(message, Deadline::after(std::chrono::microseconds(random.below(50))));
      } else {
        CancelScope scope;
        if (random.one_in(8)) scope.cancel();
        done = channel.send(message);
      }
      if (done) sent[id].push_back(number);
      if (random.one_in(4)) this_fiber::yield();
    }
  };
  auto consume = [&](std::uint32_t id) {
    test::Random random(100 + id);
    for (;;) {
      Result<Message> got = fail(Errc::would_block);
      if (random.one_in(4)) {
        got = channel.try_recv();
      } else if (random.one_in(3)) {
        got = channel.recv(Deadline::after(std::chrono::microseconds(random.below(50))));
      } else {
        got = channel.recv();
      }
      if (got) received[id].push_back(*got);
      if (got.error() == Errc::closed) return;
      if (random.one_in(4)) this_fiber::yield();
    }
  };

  test::ForeignThreads threads;
  std::vector<JoinHandle<void>> producers, consumers;
  threads.start([&] { consume(0); });
  for (std::uint32_t id = 1; id < kConsumers; ++id)
    consumers.push_back(spawn([&, id] { consume(id); }, {.hub = static_cast<int>(id)}));
  {
    test::ForeignThreads producing;
    producing.start([&] { produce(0); });
    for (std::uint32_t id = 1; id < kProducers; ++id)
      producers.push_back(spawn([&, id] { produce(id); }, {.hub = static_cast<int>(id)}));
    producing.join();
    for (auto& producer : producers)
      EXPECT_TRUE(producer.join());
  }
  EXPECT_TRUE(channel.close());
  for (auto& consumer : consumers)
    EXPECT_TRUE(consumer.join());
  threads.join();

  std::array<std::vector<std::uint32_t>, kProducers> arrived;
  for (const auto& log : received) {
    std::array<std::int64_t, kProducers> last;
    last.fill(-1);
    for (const Message& message : log) {
      EXPECT_LT(last[message.producer], std::int64_t{message.number}) << "overtaken";
      last[message.producer] = message.number;
      arrived[message.producer].push_back(message.number);
    }
  }
  std::size_t total = 0;
  for (std::uint32_t id = 0; id < kProducers; ++id) {
    std::sort(arrived[id].begin(), arrived[id].end());
    EXPECT_EQ(arrived[id], sent[id]) << "lost or doubled, producer " << id;
    total += sent[id].size();
  }
  EXPECT_GT(total, 0u);
}

FIBER_TEST(ChannelRace, ExchangeUnbuffered) {
  exchange(0);
}
FIBER_TEST(ChannelRace, ExchangeOneSlot) {
  exchange(1);
}
FIBER_TEST(ChannelRace, ExchangeManySlots) {
  exchange(7);
}

// A receiver is cancelled at about the moment when a value is handed to it. Either it returns
// with the value, or the sender still has it.
FIBER_TEST(ChannelRace, CancelAgainstHandOff) {
  const test::RaceBudget budget;
  test::Random random(0);
  do {
    Channel<int> channel;
    auto receiver = spawn([&] { return channel.recv(); }, {.hub = 1});
    auto canceller = spawn([handle = receiver.handle()] { handle.cancel(); }, {.hub = 2});
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
    const bool sent = channel.try_send(1).has_value();
    const Result<int> got = receiver.join();
    EXPECT_TRUE(canceller.join());
    EXPECT_EQ(sent, got.has_value());
    EXPECT_EQ(got.error(), sent ? std::error_code() : make_error_code(Errc::cancelled));
  } while (!budget.spent());
}

// Close against senders and receivers: who was told that the value went, it went.
FIBER_TEST(ChannelRace, CloseAgainstEveryone) {
  const test::RaceBudget budget;
  do {
    Channel<int> channel(2);
    std::atomic<int> sent{0};
    std::atomic<int> got{0};
    std::vector<JoinHandle<void>> fibers;
    for (int i = 0; i < 4; ++i) {
      fibers.push_back(spawn(
          [&] {
            while (channel.send(1))
              sent.fetch_add(1, std::memory_order_relaxed);
          },
          {.hub = i}));
      fibers.push_back(spawn(
          [&] {
            while (channel.recv())
              got.fetch_add(1, std::memory_order_relaxed);
          },
          {.hub = i}));
    }
    test::ForeignThreads threads;
    threads.start([&] {
      while (got.load(std::memory_order_relaxed) < 20)
        std::this_thread::yield();
      EXPECT_TRUE(channel.close());
    });
    threads.join();
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
    EXPECT_EQ(sent.load(), got.load());
  } while (!budget.spent());
}

}  // namespace
}  // namespace runloom
