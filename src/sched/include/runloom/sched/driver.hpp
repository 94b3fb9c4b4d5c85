// Driver: what a hub asks for events and blocks on. The scheduler knows no sockets: the network
// layer installs its poller here, and tests a simulated one.
#pragma once

#include <cstdint>
#include <memory>

namespace runloom {

class Hub;

class Driver {
 public:
  virtual ~Driver() = default;
  // Tells the layer that made the driver its own drivers from others; null for the core's.
  const void* layer() const noexcept { return layer_; }

  // Delivers events by waking their waiters, then returns. Blocks until an event, wake() or
  // `timeout_ns` (0: never blocks, negative: for ever; rounded up, never early). May return
  // spuriously (EINTR). Called on the hub's own thread, on its own stack, never on a fiber's.
  // Returns the number of events delivered.
  virtual int poll(std::int64_t timeout_ns) = 0;

  // Makes a poll() that blocks, or the next one that would, return. Any thread; no lock, no
  // allocation, async-signal-safe. The hub calls it only after the target announced its sleep.
  virtual void wake() noexcept = 0;

  // True when poll(0) may find something: operations are pending. The busy loop skips poll()
  // otherwise.
  virtual bool wants_poll() const noexcept { return true; }

  // Called on the hub's thread when the hub leaves it: what belongs to that thread ends here. The
  // next poll(), and the end, may come on another one.
  virtual void leave_thread() noexcept {}

  // Called once a second while the hub has something to trim, then not again until it worked.
  virtual void trim() noexcept {}

  // The driver's clock (a simulated one); 0: use CLOCK_MONOTONIC.
  virtual std::int64_t now_ns() noexcept { return 0; }

  // In a forked child, on the thread that forked, before anything else uses the driver: abandon
  // what is shared with the parent without touching it (close inherited descriptors, never
  // epoll_ctl on them) and build fresh.
  virtual void after_fork() noexcept {}

 protected:
  explicit Driver(const void* layer = nullptr) noexcept : layer_(layer) {}

 private:
  const void* layer_;
};

// The driver of a scheduler without network: a futex.
std::unique_ptr<Driver> make_futex_driver();

}  // namespace runloom
