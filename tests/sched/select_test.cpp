#include "runloom/sched/select.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using detail::Joined;
using test::until_parked;

FIBER_TEST(Select, TakesWhatIsReady) {
  Channel<int> numbers(1);
  Channel<std::string> names(1);
  EXPECT_TRUE(names.send("Ada"));
  RecvCase number(numbers);
  RecvCase name(names);
  EXPECT_EQ(select({&number, &name}).value(), 1u);
  EXPECT_EQ(name.take().value(), "Ada");
  SendCase out(numbers, 5);
  EXPECT_EQ(select({&name, &out}, Deadline::now()).value(),
            1u);  // ready: the deadline is no matter
  EXPECT_TRUE(out.result());
  EXPECT_EQ(numbers.recv().value(), 5);
}

FIBER_TEST(Select, TrySelectNeverParks) {
  Channel<int> empty;
  RecvCase in(empty);
  SendCase out(empty, 1);
  EXPECT_EQ(try_select({&in, &out}).error(), Errc::would_block);
  Event event;
  event.set();
  EventCase set(event);
  EXPECT_EQ(try_select({&in, &out, &set}).value(), 2u);
}

FIBER_TEST(Select, NeedsACase) {
  EXPECT_EQ(select({}).error(), std::errc::invalid_argument);
  EXPECT_EQ(try_select({}).error(), std::errc::invalid_argument);
}

FIBER_TEST(Select, WokenByASender) {
  Channel<int> first;
  Channel<int> second;
  auto selector = spawn([&] {
    RecvCase a(first);
    RecvCase b(second);
    EXPECT_EQ(select({&a, &b}).value(), 1u);
    return b.take();
  });
  until_parked(selector.handle(), WaitReason::select);
  EXPECT_TRUE(second.try_send(9));
  EXPECT_EQ(first.try_send(8).error(), Errc::would_block);  // its node there is void
  EXPECT_EQ(selector.join().value(), 9);
}

FIBER_TEST(Select, WokenByAReceiver) {
  Channel<std::unique_ptr<int>> first;
  Channel<std::unique_ptr<int>> second;
  auto selector = spawn([&] {
    SendCase a(first, std::make_unique<int>(1));
    SendCase b(second, std::make_unique<int>(2));
    EXPECT_EQ(select({&a, &b}).value(), 0u);
    EXPECT_EQ(a.value(), nullptr);
    EXPECT_EQ(*b.value(), 2);  // not consumed
  });
  until_parked(selector.handle(), WaitReason::select);
  EXPECT_EQ(*first.recv().value(), 1);
  EXPECT_TRUE(selector.join());
  EXPECT_EQ(second.try_recv().error(), Errc::would_block);
}

FIBER_TEST(Select, DeadlineAndCancelConsumeNothing) {
  Channel<int> channel;
  RecvCase in(channel);
  SendCase out(channel, 1);
  EXPECT_EQ(select({&in, &out}, Deadline::after(1ms)).error(), Errc::timed_out);
  EXPECT_EQ(select({&in, &out}, Deadline::now()).error(), Errc::timed_out);
  CancelScope scope;
  scope.cancel();
  EXPECT_EQ(select({&in, &out}).error(), Errc::cancelled);
  EXPECT_EQ(channel.try_send(1).error(), Errc::would_block);
  EXPECT_EQ(channel.try_recv().error(), Errc::would_block);
}

FIBER_TEST(Select, CloseFiresItsCase) {
  Channel<int> inbound;
  Channel<int> outbound;
  Channel<int> never;
  auto receiver = spawn([&] {
    RecvCase idle(never);
    RecvCase in(inbound);
    EXPECT_EQ(select({&idle, &in}).value(), 1u);
    EXPECT_EQ(in.take().error(), Errc::closed);
  });
  auto sender = spawn([&] {
    RecvCase idle(never);
    SendCase out(outbound, 1);
    EXPECT_EQ(select({&idle, &out}).value(), 1u);
    EXPECT_EQ(out.result().error(), Errc::closed);
    EXPECT_EQ(out.value(), 1);
  });
  until_parked(receiver.handle(), WaitReason::select);
  until_parked(sender.handle(), WaitReason::select);
  EXPECT_TRUE(inbound.close());
  EXPECT_TRUE(outbound.close());
  EXPECT_TRUE(receiver.join());
  EXPECT_TRUE(sender.join());
  RecvCase closed(inbound);
  EXPECT_EQ(select({&closed}).value(), 0u);
  EXPECT_EQ(closed.take().error(), Errc::closed);
}

FIBER_TEST(Select, BufferedValueBeatsClosed) {
  Channel<int> channel(2);
  EXPECT_TRUE(channel.send(1));
  EXPECT_TRUE(channel.close());
  RecvCase in(channel);
  EXPECT_EQ(select({&in}).value(), 0u);
  EXPECT_EQ(in.take().value(), 1);
  EXPECT_EQ(select({&in}).value(), 0u);
  EXPECT_EQ(in.take().error(), Errc::closed);
}

FIBER_TEST(Select, NeverMatchesItself) {
  Channel<int> channel;
  for (int round = 0; round < 10; ++round) {
    RecvCase in(channel);
    SendCase out(channel, 1);
    SendCase more(channel, 2);
    EXPECT_EQ(select({&in, &out, &more}, Deadline::now()).error(), Errc::timed_out);
    auto selector = spawn([&] { return select({&out, &in, &more}); });
    until_parked(selector.handle(), WaitReason::select);
    if (round % 2 == 0) {
      EXPECT_GT(channel.recv().value(), 0);
      EXPECT_NE(selector.join().value(), 1u);
    } else {
      EXPECT_TRUE(channel.send(3));
      EXPECT_EQ(selector.join().value(), 1u);
      EXPECT_EQ(in.take().value(), 3);
    }
  }
}

FIBER_TEST(Select, TwoSelectsMeet) {
  Channel<int> channel;
  auto both = [&](int value) {
    RecvCase in(channel);
    SendCase out(channel, value);
    const std::size_t fired = select({&in, &out}).value();
    return fired == 0 ? in.take().value() : -value;
  };
  auto first = spawn([&] { return both(1); });
  auto second = spawn([&] { return both(2); });
  const int a = first.join().value();
  const int b = second.join().value();
  // One sent what the other received.
  EXPECT_EQ(a, -b);
  EXPECT_TRUE(a == 2 || a == -1) << a;
}

FIBER_TEST(Select, ChoosesFairly) {
  detail::seed_select(1);
  constexpr int kRounds = 6000;
  // Three of six are ready; none of those may be preferred, wherever it stands.
  Channel<int> channel[6] = {Channel<int>(1), Channel<int>(1), Channel<int>(1),
                             Channel<int>(1), Channel<int>(1), Channel<int>(1)};
  std::vector<std::unique_ptr<RecvCase<int>>> cases;
  std::vector<SelectSource*> sources;
  for (auto& each : channel) {
    cases.push_back(std::make_unique<RecvCase<int>>(each));
    sources.push_back(cases.back().get());
  }
  for (std::size_t ready : {0u, 1u, 5u})
    EXPECT_TRUE(channel[ready].send(0));
  std::array<int, 6> chosen{};
  for (int i = 0; i < kRounds; ++i) {
    const std::size_t fired = select(sources).value();
    ++chosen[fired];
    EXPECT_TRUE(channel[fired].send(0));
  }
  for (std::size_t ready : {0u, 1u, 5u}) {
    EXPECT_GT(chosen[ready], kRounds / 3 - 200);
    EXPECT_LT(chosen[ready], kRounds / 3 + 200);
  }
}

FIBER_TEST(Select, ManyCases) {
  constexpr std::size_t kCases = 1000;
  std::vector<std::unique_ptr<Channel<int>>> channels;
  for (std::size_t i = 0; i < kCases; ++i)
    channels.push_back(std::make_unique<Channel<int>>());
  auto selector = spawn([&] {
    std::vector<std::unique_ptr<RecvCase<int>>> cases;
    std::vector<SelectSource*> sources;
    for (auto& channel : channels) {
      cases.push_back(std::make_unique<RecvCase<int>>(*channel));
      sources.push_back(cases.back().get());
    }
    const std::size_t fired = select(sources).value();
    EXPECT_EQ(cases[fired]->take().value(), 5);
    return fired;
  });
  until_parked(selector.handle(), WaitReason::select);
  EXPECT_TRUE(channels[777]->try_send(5));
  EXPECT_EQ(selector.join().value(), 777u);
  EXPECT_EQ(channels[778]->try_send(5).error(), Errc::would_block);
}

FIBER_TEST(Select, EventFires) {
  Event event;
  Channel<int> channel;
  auto selector = spawn([&] {
    RecvCase in(channel);
    EventCase stop(event);
    return select({&in, &stop});
  });
  until_parked(selector.handle(), WaitReason::select);
  event.set();
  event.clear();
  EXPECT_EQ(selector.join().value(), 1u);
  EventCase stop(event);
  EXPECT_EQ(select({&stop}, Deadline::now()).error(), Errc::timed_out);
}

FIBER_TEST(Select, UntakenValuesAreDestroyed) {
  auto shared = std::make_shared<int>(1);
  Channel<std::shared_ptr<int>> channel(4);
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(channel.send(shared));
  {
    RecvCase in(channel);
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(select({&in}));
    EXPECT_EQ(shared.use_count(), 3);  // ours, the last one received, the one still buffered
  }
  EXPECT_EQ(shared.use_count(), 2);
  EXPECT_TRUE(channel.recv());
}

FIBER_TEST(Select, S18_OsThreadsSelect) {
  Channel<int> requests;
  Event stop;
  test::ForeignThreads threads;
  std::atomic<int> sum{0};
  threads.start([&] {
    RecvCase in(requests);
    EventCase stopped(stop);
    while (select({&in, &stopped}).value() == 0)
      sum.fetch_add(in.take().value());
    EXPECT_EQ(select({&in}, Deadline::after(1ms)).error(), Errc::timed_out);
  });
  for (int i = 1; i <= 10; ++i) {
    SendCase out(requests, i);
    EXPECT_EQ(select({&out}).value(), 0u);
  }
  stop.set();
  threads.join();
  EXPECT_EQ(sum.load(), 55);
}

// A source as another layer may write one: a counter that any thread may raise. It pretends to be
// ready without being so a few times.
class Tokens {
 public:
  void put() {
    detail::WaitNode* woken = nullptr;
    {
      std::lock_guard hold(lock_);
      woken = waiters_.claim_front();
      if (!woken) ++count_;
    }
    if (woken) detail::schedule(woken->token.waiter);
  }
  void pretend(int times) { pretended_ = times; }

  class Case final : public SelectSource {
   public:
    explicit Case(Tokens& tokens) : tokens_(tokens) {}
    bool try_take() override {
      std::lock_guard hold(tokens_.lock_);
      if (tokens_.count_ == 0) return false;
      --tokens_.count_;
      return true;
    }
    Joined enqueue(detail::WaitNode& node) override {
      std::lock_guard hold(tokens_.lock_);
      if (tokens_.count_ == 0 && tokens_.pretended_ == 0) {
        tokens_.waiters_.push_back(node);
        return Joined::waiting;
      }
      if (!detail::claim(node.token, node.code)) return Joined::lost;
      if (tokens_.count_ == 0) {
        --tokens_.pretended_;
        return Joined::retry;
      }
      --tokens_.count_;
      return Joined::done;
    }
    void dequeue(detail::WaitNode& node, bool) noexcept override {
      std::lock_guard hold(tokens_.lock_);
      tokens_.waiters_.remove_if_linked(node);
    }
    bool external() const noexcept override { return true; }

   private:
    Tokens& tokens_;
  };

 private:
  detail::SpinLock lock_{detail::LockRank::primitive};
  detail::WaitList waiters_;
  int count_ = 0;
  int pretended_ = 0;
};

FIBER_TEST(Select, FurtherSources) {
  Tokens tokens;
  Channel<int> never;
  RecvCase in(never);
  Tokens::Case token(tokens);
  tokens.put();
  EXPECT_EQ(select({&in, &token}).value(), 1u);
  tokens.pretend(3);  // the select starts over each time, then parks
  // An external source: no deadlock while only a thread can end the wait.
  std::thread thread([&] {
    std::this_thread::sleep_for(5ms);
    tokens.put();
  });
  EXPECT_EQ(select({&in, &token}).value(), 1u);
  thread.join();
  EXPECT_EQ(try_select({&in, &token}).error(), Errc::would_block);
}

// ---------------------------------------------------------------- races

// Everybody selects over all channels, in both directions, unbuffered and buffered, and gives up
// at random. Each value that was sent arrives exactly once.
FIBER_TEST(SelectRace, EverybodyWithEverybody) {
  constexpr std::uint32_t kWorkers = 8;
  Channel<std::uint64_t> channels[3] = {Channel<std::uint64_t>(0), Channel<std::uint64_t>(0),
                                        Channel<std::uint64_t>(2)};
  std::array<std::vector<std::uint64_t>, kWorkers> sent, received;
  const test::RaceBudget budget;
  auto work = [&](std::uint32_t id) {
    test::Random random(id);
    std::uint64_t next = std::uint64_t{id} << 32;
    while (!budget.spent()) {
      RecvCase<std::uint64_t> in[3] = {RecvCase(channels[0]), RecvCase(channels[1]),
                                       RecvCase(channels[2])};
      SendCase<std::uint64_t> out[3] = {
          {channels[0], next}, {channels[1], next}, {channels[2], next}};
      std::vector<SelectSource*> cases;
      for (int i = 0; i < 3; ++i) {
        if (!random.one_in(3)) cases.push_back(&in[i]);
        if (!random.one_in(3)) cases.push_back(&out[i]);
      }
      if (cases.empty()) continue;
      CancelScope scope;
      if (random.one_in(16)) scope.cancel();
      const auto limit = std::chrono::microseconds(random.below(60));
      const auto fired =
          random.one_in(4) ? try_select(cases) : select(cases, Deadline::after(limit));
      if (!fired) {
        if (random.one_in(4)) this_fiber::yield();
        continue;
      }
      for (int i = 0; i < 3; ++i) {
        if (cases[*fired] == &in[i]) received[id].push_back(in[i].take().value());
        if (cases[*fired] == &out[i]) {
          EXPECT_TRUE(out[i].result());
          sent[id].push_back(next++);
        }
      }
    }
  };
  test::ForeignThreads threads;
  std::vector<JoinHandle<void>> fibers;
  threads.start([&] { work(0); });
  for (std::uint32_t id = 1; id < kWorkers; ++id)
    fibers.push_back(spawn([&, id] { work(id); }, {.hub = static_cast<int>(id)}));
  threads.join();
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());

  std::vector<std::uint64_t> all_sent, all_received;
  for (std::uint32_t id = 0; id < kWorkers; ++id) {
    all_sent.insert(all_sent.end(), sent[id].begin(), sent[id].end());
    all_received.insert(all_received.end(), received[id].begin(), received[id].end());
  }
  while (auto left = channels[2].try_recv())
    all_received.push_back(*left);
  std::sort(all_sent.begin(), all_sent.end());
  std::sort(all_received.begin(), all_received.end());
  EXPECT_EQ(all_sent, all_received);
  EXPECT_FALSE(all_sent.empty());
}

// Two selects on two hubs, each of which only the other can serve, by the one channel or the
// other: they find each other while both are still enqueuing.
FIBER_TEST(SelectRace, MirrorImages) {
  const test::RaceBudget budget;
  Channel<int> left, right;
  std::atomic<std::int64_t> a_sent{0}, a_got{0}, b_sent{0}, b_got{0};
  Event over;
  auto mirror = [&](Channel<int>& out_channel, Channel<int>& in_channel,
                    std::atomic<std::int64_t>& sent, std::atomic<std::int64_t>& got) {
    SendCase out(out_channel, 1);
    RecvCase in(in_channel);
    EventCase stop(over);
    for (;;) {
      const std::size_t fired = select({&out, &in, &stop}).value();
      if (fired == 2) return;
      (fired == 0 ? sent : got).fetch_add(1, std::memory_order_relaxed);
      if (fired == 1) (void)in.take();
    }
  };
  auto a = spawn([&] { mirror(left, right, a_sent, a_got); }, {.hub = 0});
  auto b = spawn([&] { mirror(right, left, b_sent, b_got); }, {.hub = 1});
  while (!budget.spent())
    this_fiber::yield();
  over.set();
  EXPECT_TRUE(a.join());
  EXPECT_TRUE(b.join());
  EXPECT_EQ(a_sent.load(), b_got.load());
  EXPECT_EQ(b_sent.load(), a_got.load());
  EXPECT_GT(a_sent.load() + b_sent.load(), 0);
}

}  // namespace
}  // namespace runloom
