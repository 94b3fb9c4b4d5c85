#include "timer_heap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

namespace runloom::detail {
namespace {

struct Timer : TimerNode {
  explicit Timer(std::vector<int>& log, int number) : fired(&log), id(number) {
    fire = [](TimerNode& node) {
      auto& self = static_cast<Timer&>(node);
      EXPECT_FALSE(self.armed());
      self.fired->push_back(self.id);
    };
  }
  std::vector<int>* fired;
  int id;
};

TEST(TimerHeap, FiresWhatIsDueInOrderOfTime) {
  std::vector<int> fired;
  Timer a(fired, 1), b(fired, 2), c(fired, 3);
  TimerHeap heap;
  heap.insert(a, 30);
  heap.insert(b, 10);
  heap.insert(c, 20);
  EXPECT_EQ(heap.next_ns(), 10);
  heap.expire(9);
  EXPECT_TRUE(fired.empty());
  heap.expire(20);  // due at that very time
  EXPECT_EQ(fired, (std::vector<int>{2, 3}));
  EXPECT_TRUE(a.armed());
  heap.expire(1000);
  EXPECT_EQ(fired, (std::vector<int>{2, 3, 1}));
  EXPECT_TRUE(heap.empty());
}

TEST(TimerHeap, EqualTimesFireInInsertionOrder) {
  std::vector<int> fired;
  std::vector<std::unique_ptr<Timer>> timers;
  TimerHeap heap;
  for (int i = 0; i < 100; ++i) {
    timers.push_back(std::make_unique<Timer>(fired, i));
    heap.insert(*timers.back(), i % 2 ? 7 : 5);
  }
  heap.expire(7);
  std::vector<int> wanted;
  for (int i = 0; i < 100; i += 2)
    wanted.push_back(i);
  for (int i = 1; i < 100; i += 2)
    wanted.push_back(i);
  EXPECT_EQ(fired, wanted);
}

TEST(TimerHeap, RandomInsertRemoveAgreesWithASortedList) {
  std::mt19937 random(20260611);
  std::vector<int> fired;
  std::vector<std::unique_ptr<Timer>> timers;
  for (int i = 0; i < 500; ++i)
    timers.push_back(std::make_unique<Timer>(fired, i));
  struct Armed {
    std::int64_t when;
    std::uint64_t sequence;
    int id;
    bool operator<(const Armed& other) const {
      return when != other.when ? when < other.when : sequence < other.sequence;
    }
  };
  std::vector<Armed> model;
  TimerHeap heap;
  std::uint64_t sequence = 0;
  std::int64_t now = 0;
  for (int step = 0; step < 20'000; ++step) {
    Timer& timer = *timers[random() % timers.size()];
    if (timer.armed()) {
      const auto it = std::find_if(model.begin(), model.end(),
                                   [&](const Armed& armed) { return armed.id == timer.id; });
      ASSERT_EQ(heap.when(timer), it->when);
      model.erase(it);
      heap.remove(timer);
    } else {
      const std::int64_t when = now + static_cast<std::int64_t>(random() % 100);
      heap.insert(timer, when);
      model.push_back({when, ++sequence, timer.id});
    }
    ASSERT_EQ(heap.size(), model.size());
    if (!model.empty()) {
      ASSERT_EQ(heap.next_ns(), std::min_element(model.begin(), model.end())->when);
    }
    if (step % 50 == 0) {
      now += static_cast<std::int64_t>(random() % 30);
      std::sort(model.begin(), model.end());
      std::vector<int> wanted;
      while (!model.empty() && model.front().when <= now) {
        wanted.push_back(model.front().id);
        model.erase(model.begin());
      }
      fired.clear();
      heap.expire(now);
      ASSERT_EQ(fired, wanted);
    }
  }
}

// A18: what was cancelled is gone at once.
TEST(TimerHeap, CancelledTimersLeaveNothingBehind) {
  std::vector<int> fired;
  TimerHeap heap;
  Timer timer(fired, 0);
  for (int i = 0; i < 1'000'000; ++i) {
    heap.insert(timer, 1'000'000 + i);
    heap.remove(timer);
  }
  EXPECT_TRUE(heap.empty());
}

}  // namespace
}  // namespace runloom::detail
