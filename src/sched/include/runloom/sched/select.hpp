// select: waits for the first of several sources: channel sends and receives, events, timers
// (through their channel), a deadline, and whatever else is a SelectSource.
//
//     RecvCase request(requests);
//     SendCase answer(answers, std::move(text));
//     EventCase stop(stopping);
//     auto fired = select({&request, &answer, &stop}, Deadline::after(1s));
//     if (!fired) ...                  // timed_out or cancelled: no case was completed
//     if (*fired == 0) use(request.take());
//
// Exactly one case completes, the others consume nothing. Among cases that are ready the choice
// is uniformly random, so none starves. The same channel may stand in a send and in a receive
// case; they never match each other. A case may be used for one select after another, by one
// waiter at a time.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <new>
#include <span>
#include <utility>

#include "runloom/sched/channel.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/event.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/select_source.hpp"

namespace runloom {

// Parks until one case has completed and returns its index. A passed deadline still completes a
// case that is ready. Fails with timed_out, cancelled, or std::errc::invalid_argument when there
// is no case or more than 65,519. Fibers and OS threads.
Result<std::size_t> select(std::span<SelectSource* const> cases, Deadline deadline = {});
inline Result<std::size_t> select(std::initializer_list<SelectSource*> cases,
                                  Deadline deadline = {}) {
  return select(std::span<SelectSource* const>(cases.begin(), cases.size()), deadline);
}

// Never parks: fails with would_block when no case is ready.
Result<std::size_t> try_select(std::span<SelectSource* const> cases);
inline Result<std::size_t> try_select(std::initializer_list<SelectSource*> cases) {
  return try_select(std::span<SelectSource* const>(cases.begin(), cases.size()));
}

namespace detail {

// A send or receive of a value that the derived class stores.
class ChannelCase : public SelectSource {
 public:
  bool try_take() override;
  Joined enqueue(WaitNode& node) override;
  void dequeue(WaitNode& node, bool fired) noexcept override;

 protected:
  enum class Direction : bool { send, recv };
  enum class Outcome : std::uint8_t { none, done, closed };
  ChannelCase(ChannelCore& core, Direction direction, void* value) noexcept
      : core_(core), transfer_{value}, direction_(direction) {}
  // A new attempt begins.
  virtual void reset() noexcept = 0;

  Outcome outcome_ = Outcome::none;

 private:
  ChannelCore& core_;
  ChannelTransfer transfer_;
  Direction direction_;
};

// The calling thread's random order of select from here on.
void seed_select(std::uint64_t seed) noexcept;

}  // namespace detail

template <class T>
class RecvCase final : public detail::ChannelCase {
 public:
  explicit RecvCase(Channel<T>& channel) noexcept
      : ChannelCase(channel.core(), Direction::recv, slot_) {}
  ~RecvCase() override { RecvCase::reset(); }

  // What the case received, once, after it fired: a value, or Errc::closed.
  Result<T> take() noexcept {
    if (outcome_ != Outcome::done) return fail(Errc::closed);
    Result<T> taken(std::move(value()));
    RecvCase::reset();
    return taken;
  }

 private:
  T& value() noexcept { return *std::launder(reinterpret_cast<T*>(slot_)); }
  void reset() noexcept override {
    if (outcome_ == Outcome::done) value().~T();
    outcome_ = Outcome::none;
  }
  alignas(T) unsigned char slot_[sizeof(T)];
};

template <class T>
class SendCase final : public detail::ChannelCase {
 public:
  SendCase(Channel<T>& channel, T value) noexcept
      : ChannelCase(channel.core(), Direction::send, &value_), value_(std::move(value)) {}

  // The value: unchanged unless the case fired and result() is good. Assign to send another one.
  T& value() noexcept { return value_; }
  // After the case fired: good, or Errc::closed.
  Result<void> result() const noexcept {
    if (outcome_ != Outcome::done) return fail(Errc::closed);
    return {};
  }

 private:
  void reset() noexcept override { outcome_ = Outcome::none; }
  T value_;
};
template <class T, class U>
SendCase(Channel<T>&, U&&) -> SendCase<T>;

// Fires when the event is set.
class EventCase final : public SelectSource {
 public:
  explicit EventCase(Event& event) noexcept : event_(event) {}
  bool try_take() override { return event_.is_set(); }
  detail::Joined enqueue(detail::WaitNode& node) override { return event_.join(node); }
  void dequeue(detail::WaitNode& node, bool) noexcept override { event_.leave(node); }

 private:
  Event& event_;
};

}  // namespace runloom
