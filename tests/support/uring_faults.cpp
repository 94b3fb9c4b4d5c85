// Faults for operations of an io_uring: the entry that is to fail is made one that does nothing
// before it is handed over, and its completion gets the error.
#include <liburing.h>

#include <cerrno>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "support/syscall_faults.hpp"

namespace runloom::test {

const bool uring_wrapped = true;

namespace {

std::optional<Call> call_of(unsigned operation) {
  switch (operation) {
    case IORING_OP_RECV:
      return Call::recv;
    case IORING_OP_SEND:
      return Call::send;
    case IORING_OP_RECVMSG:
      return Call::recvmsg;
    case IORING_OP_SENDMSG:
      return Call::sendmsg;
    default:
      return std::nullopt;
  }
}

std::mutex mutex;
std::unordered_map<std::uint64_t, int> failing;  // by user_data; guarded by it

void before_submission(io_uring& ring) {
  for (unsigned i = ring.sq.sqe_head; i != ring.sq.sqe_tail; ++i) {
    io_uring_sqe& sqe = ring.sq.sqes[i & ring.sq.ring_mask];
    const auto call = call_of(sqe.opcode);
    if (!call || !fails(*call)) continue;
    const int err = errno;
    const std::uint64_t data = sqe.user_data;
    io_uring_prep_nop(&sqe);
    sqe.user_data = data;
    const std::lock_guard hold(mutex);
    failing[data] = err;
  }
}

void after_submission(io_uring& ring) {
  const std::lock_guard hold(mutex);
  if (failing.empty()) return;
  const unsigned ready = io_uring_cq_ready(&ring);
  for (unsigned i = 0; i < ready; ++i) {
    io_uring_cqe& cqe = ring.cq.cqes[(*ring.cq.khead + i) & ring.cq.ring_mask];
    const auto it = failing.find(cqe.user_data);
    if (it == failing.end()) continue;
    cqe.res = -it->second;
    failing.erase(it);
  }
}

// The wrapped call of liburing, which tells its errors by its value.
template <class Submit>
int submit(io_uring& ring, Submit&& call) {
  if (fails(Call::io_uring_enter)) return -errno;
  before_submission(ring);
  const int result = call();
  after_submission(ring);
  return result;
}

}  // namespace
}  // namespace runloom::test

// NOLINTBEGIN
extern "C" {
__attribute__((visibility("default"))) int io_uring_submit(io_uring* ring) {
  static auto* const next = runloom::test::next_of<int(io_uring*)>("io_uring_submit");
  return runloom::test::submit(*ring, [&] { return next(ring); });
}
__attribute__((visibility("default"))) int io_uring_submit_and_get_events(io_uring* ring) {
  static auto* const next =
      runloom::test::next_of<int(io_uring*)>("io_uring_submit_and_get_events");
  return runloom::test::submit(*ring, [&] { return next(ring); });
}
__attribute__((visibility("default"))) int io_uring_submit_and_wait_timeout(
    io_uring* ring, io_uring_cqe** cqe, unsigned wait, __kernel_timespec* limit, sigset_t* mask) {
  static auto* const next =
      runloom::test::next_of<int(io_uring*, io_uring_cqe**, unsigned, __kernel_timespec*,
                                 sigset_t*)>("io_uring_submit_and_wait_timeout");
  return runloom::test::submit(*ring, [&] { return next(ring, cqe, wait, limit, mask); });
}
__attribute__((visibility("default"))) int io_uring_queue_init_params(unsigned entries,
                                                                      io_uring* ring,
                                                                      io_uring_params* params) {
  static auto* const next = runloom::test::next_of<int(unsigned, io_uring*, io_uring_params*)>(
      "io_uring_queue_init_params");
  if (runloom::test::fails(runloom::test::Call::io_uring_setup)) return -errno;
  return next(entries, ring, params);
}
}
// NOLINTEND
