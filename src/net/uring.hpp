// Uring: an io_uring of one thread. With netpoll_uring.cpp the only place that knows liburing.
//
// An operation is an SQE and a UringOp that outlives it: whoever starts one keeps the UringOp, and
// whatever the kernel was told to read or write, until its last completion has been delivered. That
// holds for cancelled ones, too: cancel() only makes the completion come soon.
//
// SQEs gather until enter(), once a loop turn, hands them over with one system call; the same call
// fetches completions, and waits for one if it may. A completion that finds the completion queue
// full is kept by the kernel and comes with a later enter().
//
// Everything belongs to the thread that made the ring (I2): it is the only one that the kernel
// accepts (SINGLE_ISSUER), and completions are delivered on it, inside enter().
//
// Sources: io_uring_setup(2), io_uring_enter(2), io_uring_register(2).
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runloom/sched/result.hpp"

namespace runloom::net {

// An operation in flight. Embedded in what waits for it.
struct UringOp {
  // A completion: what the system call would have returned, or -errno, and IORING_CQE_F_*. May
  // start operations; must not park. After the last one (no IORING_CQE_F_MORE) the operation may
  // be gone.
  using Done = void (*)(UringOp& op, int result, std::uint32_t flags) noexcept;

  explicit UringOp(Done fn) noexcept : done(fn) {}
  UringOp(const UringOp&) = delete;
  UringOp& operator=(const UringOp&) = delete;

  Done done;
  // What `done`, and who it wakes, are going to touch, to fetch it early; may be null.
  const void* waiter = nullptr;
  const void* object = nullptr;
  // The ring's.
  UringOp* next_cancel = nullptr;
  bool in_flight = false;
  bool cancelling = false;
};

class Uring {
 public:
  // A ring for the calling thread, with as many submission entries as `entries` or, where memory
  // may not be locked, fewer. Fails with what io_uring_setup(2) says: ENOSYS or EPERM where it is
  // forbidden, ENOMEM (RLIMIT_MEMLOCK), EMFILE; ENOTSUP when the kernel lacks what is needed
  // here. `why` gets a sentence for people.
  static Result<std::unique_ptr<Uring>> make(unsigned entries, std::string* why = nullptr);
  // Operations that are still in flight are never delivered; the kernel cancels them.
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // A blank entry, to be filled in and start()ed before the next call. Null: the kernel takes
  // nothing more for now (EAGAIN).
  io_uring_sqe* prepare() noexcept;
  // Gives a blank entry up.
  static void discard(io_uring_sqe& sqe) noexcept;
  // `op` must not be in flight.
  void start(io_uring_sqe& sqe, UringOp& op) noexcept;
  // Makes the operation end soon, with -ECANCELED unless it is quicker. Always possible.
  void cancel(UringOp& op) noexcept;

  // Submits, waits for a completion up to `timeout_ns` (0: not at all, negative: for ever) and
  // delivers what has come: at most kBatch, without system call when nothing is to be submitted
  // and nothing has happened. Returns how many, or -errno: -ETIME and -EINTR are no errors.
  int enter(std::int64_t timeout_ns) noexcept;
  static constexpr int kBatch = 64;

  // Operations in flight.
  std::size_t in_flight() const noexcept { return in_flight_; }
  // True when entries wait to be handed over.
  bool has_entries() const noexcept { return open_ && io_uring_sq_ready(&ring_) != 0; }
  // True when enter(0) has something to do.
  bool has_work() const noexcept;
  // Operations in flight that are being cancelled.
  std::size_t ending() const noexcept { return ending_; }
  // Ends the ring, as the destructor does, which is all that may be called then.
  void shut() noexcept;
  // The same in a forked child, for what is shared with the parent.
  void abandon() noexcept;
  bool usable() const noexcept { return open_; }
  // Other code has closed the ring's number, which may be another's by now.
  void forget_number() noexcept;
  // Completions that the completion queue had no room for.
  unsigned overflows() const noexcept { return overflows_; }
  unsigned completion_entries() const noexcept { return ring_.cq.ring_entries; }
  io_uring& raw() noexcept { return ring_; }

 private:
  Uring() = default;
  int set_up(unsigned entries) noexcept;
  bool supports(std::string& missing) noexcept;
  bool needs_enter() const noexcept;
  int deliver() noexcept;
  void fetch_ahead(unsigned ready) const noexcept;
  void ended(UringOp& op) noexcept;
  void submit_cancels() noexcept;

  io_uring ring_{};
  bool open_ = false;
  UringOp* cancels_ = nullptr;  // to be cancelled when there is an entry for it
  std::size_t in_flight_ = 0;
  std::size_t ending_ = 0;
  unsigned overflows_ = 0;
};

}  // namespace runloom::net
