// Calls on files as operations of the hub's ring, the network's or one of their own. The kernel
// reads into the page cache without a thread where the file system can, and has threads of its own
// for the rest: a few a processor for files, whatever is in flight.
//
// What the ring can't do on the oldest kernel supported (truncate, getdents64, copy_file_range), or
// does otherwise (at the position), goes to the pool, and so does what it gives back undone.
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <new>

#include "file_engine.hpp"
#include "hub_netpoll.hpp"
#include "uring.hpp"

namespace runloom::net {
namespace {

struct RingCall final : UringOp {
  RingCall(FileOp& op, Uring& its_ring) noexcept : UringOp(&ended), file(op), ring(its_ring) {}
  static void ended(UringOp& op, int result, std::uint32_t flags) noexcept;
  FileOp& file;
  Uring& ring;
  bool cancelled = false;
};

bool is_known(const FileOp& op) noexcept {
  switch (op.call) {
    case FileCall::truncate:
    case FileCall::list:
    case FileCall::copy:
      return false;
    case FileCall::read:
    case FileCall::write:
      // At the position: when a part of it fails the ring returns the count of the rest and leaves
      // the position where it was.
      return op.offset >= 0;
    default:
      return true;
  }
}

void fill(io_uring_sqe& sqe, FileOp& op) noexcept {
  const auto at = [](off_t offset) { return static_cast<std::uint64_t>(offset); };
  const auto mode = static_cast<mode_t>(op.mode);
  const auto size = static_cast<unsigned>(op.size);
  switch (op.call) {
    case FileCall::read:
      return io_uring_prep_readv(&sqe, op.fd, op.vectors, op.vector_count, at(op.offset));
    case FileCall::write:
      return io_uring_prep_writev(&sqe, op.fd, op.vectors, op.vector_count, at(op.offset));
    case FileCall::sync:
      return io_uring_prep_fsync(&sqe, op.fd, 0);
    case FileCall::data_sync:
      return io_uring_prep_fsync(&sqe, op.fd, IORING_FSYNC_DATASYNC);
    case FileCall::allocate:
      return io_uring_prep_fallocate(&sqe, op.fd, 0, op.offset, static_cast<off_t>(op.size));
    case FileCall::status:
      return io_uring_prep_statx(&sqe, op.fd, op.path.c_str(), op.flags, STATX_BASIC_STATS,
                                 &op.status);
    case FileCall::open:
      return io_uring_prep_openat(&sqe, op.fd, op.path.c_str(), op.flags | O_CLOEXEC, mode);
    case FileCall::close:
      return io_uring_prep_close(&sqe, op.fd);
    case FileCall::rename:
      return io_uring_prep_renameat(&sqe, AT_FDCWD, op.path.c_str(), AT_FDCWD,
                                    op.other_path.c_str(), 0);
    case FileCall::remove:
      return io_uring_prep_unlinkat(&sqe, AT_FDCWD, op.path.c_str(), op.flags);
    case FileCall::make_directory:
      return io_uring_prep_mkdirat(&sqe, AT_FDCWD, op.path.c_str(), mode);
    case FileCall::splice:
      return io_uring_prep_splice(&sqe, op.fd, op.offset, op.other_fd, op.other_offset, size,
                                  static_cast<unsigned>(op.flags));
    case FileCall::truncate:
    case FileCall::list:
    case FileCall::copy:
      break;
  }
}

// What the ring answers where a system call would have waited, or would have another answer.
bool is_undone(const FileOp& op, int result) noexcept {
  if (op.call == FileCall::close) return false;
  return result == -EAGAIN || result == -EINTR || result == -EINVAL || result == -EOPNOTSUPP;
}

void RingCall::ended(UringOp& op, int result, std::uint32_t) noexcept {
  const std::unique_ptr<RingCall> call(static_cast<RingCall*>(&op));
  FileOp& file = call->file;
  {
    std::lock_guard hold(file.lock);
    file.in_ring = nullptr;
  }
  if (is_undone(file, result)) {
    if (call->cancelled)
      result = -ECANCELED;
    else if (detail::submit(file))
      return;
  }
  file.complete(result);
}

class UringFileEngine final : public FileEngine {
 public:
  Result<void> start(FileOp& op) noexcept override {
    Uring* const ring = hub_ring();
    auto call = std::unique_ptr<RingCall>(ring ? new (std::nothrow) RingCall(op, *ring) : nullptr);
    io_uring_sqe* const sqe = call ? ring->prepare() : nullptr;
    if (!sqe) return pool_file_engine().start(op);
    fill(*sqe, op);
    op.in_ring = call.get();
    ring->start(*sqe, *call.release());
    return {};
  }
  bool withdraw(FileOp& op) noexcept override {
    if (!op.in_ring) return pool_file_engine().withdraw(op);
    auto& call = *static_cast<RingCall*>(op.in_ring);
    call.cancelled = true;
    call.ring.cancel(call);
    return false;
  }

  // Null: the hub has none.
  static Uring* hub_ring() noexcept {
    if (!detail::fiber_hub()) return nullptr;
    const auto netpoll = Netpoll::current();  // a program of files alone has not made it yet
    return netpoll ? (*netpoll)->file_ring() : nullptr;
  }
};
constinit UringFileEngine uring;

}  // namespace

FileEngine* uring_file_engine(const FileOp& op) noexcept {
  return is_known(op) && UringFileEngine::hub_ring() ? &uring : nullptr;
}

}  // namespace runloom::net
