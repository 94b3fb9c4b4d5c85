// ForkSafe: state of the process that a forked child must not share: its locks may be held by
// threads that are gone, its descriptors belong to the parent. In the child get() makes a fresh
// one; the old one is told (abandon(), which may close descriptors and nothing else) and never
// freed, because dropped fibers may have been changing it.
#pragma once

#include <atomic>

namespace runloom::dns {

// Forks between this process and the first that asked.
unsigned fork_generation() noexcept;

// T has a member `unsigned fork` and `void abandon() noexcept`.
template <class T>
class ForkSafe {
 public:
  constexpr ForkSafe() noexcept = default;
  ForkSafe(const ForkSafe&) = delete;
  ForkSafe& operator=(const ForkSafe&) = delete;

  // Any thread. `make` gives a T by `new`.
  template <class Make>
  T& get(Make&& make) {
    T* now = state_.load(std::memory_order_acquire);
    const unsigned generation = fork_generation();
    if (now && now->fork == generation) return *now;
    T* const fresh = make();
    fresh->fork = generation;
    if (state_.compare_exchange_strong(now, fresh, std::memory_order_acq_rel)) {
      if (now) now->abandon();
      return *fresh;
    }
    delete fresh;  // another thread was faster
    return *now;
  }
  T& get() {
    return get([] { return new T; });
  }
  T* peek() const noexcept {
    T* const now = state_.load(std::memory_order_acquire);
    return now && now->fork == fork_generation() ? now : nullptr;
  }
  // For the owner's end: takes it out; null: there is none of this process.
  T* release() noexcept {
    T* const now = peek();
    state_.store(nullptr, std::memory_order_release);
    return now;
  }

 private:
  std::atomic<T*> state_{nullptr};
};

}  // namespace runloom::dns
