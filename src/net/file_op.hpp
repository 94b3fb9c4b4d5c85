// FileOp: one system call on a file as data, so that it can be made by whoever is at hand: the
// calling thread, a thread of the blocking pool, or a ring.
//
// Two kinds, see docs/decisions/040-what-a-cancelled-file-operation-leaves-behind.md:
//
// - One whose caller *waits*: once it has begun, the fiber stays until it has ended, whatever
//   becomes of deadlines and cancellation. It may lie on the fiber's stack and use the caller's
//   memory. For what changes something: writes, renames, the position.
// - One whose caller may *leave*: on the heap, with memory of its own. The fiber goes at once, and
//   the operation frees itself, and undoes what it can (open), at its end.
#pragma once

#include <sys/stat.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "file_state.hpp"
#include "runloom/sched/blocking.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom::net {

enum class FileCall : std::uint8_t {
  read,            // fd, vectors, offset (-1: at the position)
  write,           // the same
  sync,            // fd
  data_sync,       // fd
  allocate,        // fd, offset, size
  truncate,        // fd, size
  status,          // fd and path (empty: of fd itself), flags; into status
  open,            // fd, path, flags, mode; gives a descriptor
  close,           // fd
  rename,          // path, other_path
  remove,          // path, flags
  make_directory,  // path, mode
  list,            // fd, memory, size
  copy,            // fd, offset, other_fd, other_offset, size
  splice,          // the same, of which one is a pipe; flags
};

// Memory that a file opened with O_DIRECT accepts, too.
struct FreeAligned {
  void operator()(std::byte* memory) const noexcept {
    ::operator delete[](memory, std::align_val_t{4096});
  }
};
using AlignedMemory = std::unique_ptr<std::byte[], FreeAligned>;
AlignedMemory allocate_aligned(std::size_t size) noexcept;  // null: no memory

struct FileOp : detail::BlockingJob {
  explicit FileOp(FileCall what) noexcept;
  FileOp(const FileOp&) = delete;
  FileOp& operator=(const FileOp&) = delete;

  // Makes the system call on this thread: what it returned, or -errno. EINTR is no end.
  long perform() noexcept;
  // It has ended with `value`, what perform() would return. Once; any thread. The operation may be
  // gone afterwards.
  void complete(long value) noexcept;

  const FileCall call;
  int fd = -1;
  int other_fd = -1;
  int flags = 0;
  unsigned mode = 0;
  off_t offset = -1;
  off_t other_offset = -1;
  std::size_t size = 0;
  const iovec* vectors = nullptr;
  unsigned vector_count = 0;

  // --- of those that may be left ---
  iovec own_vector{};
  AlignedMemory memory;
  std::string path;
  std::string other_path;
  struct statx status {};
  FileUse use;  // keeps the descriptor open

  // --- the engine's ---
  detail::SpinLock lock{detail::LockRank::primitive};  // guards what follows
  detail::WaitToken token;
  bool done = false;
  bool left = false;
  long result = 0;
  void* in_ring = nullptr;  // while a ring has it; only on the hub's thread

 private:
  void clean_up() noexcept;
};

// Make the call and park until it has ended: on a fiber through the engine of its hub, off a fiber
// right here. Fail with the call's errno; with cancelled and timed_out (also of enclosing scopes)
// when it was not made, or, the second one, when it was left; with thread_limit, park_forbidden. A
// cancel point, but when a call has moved something that is the outcome.
//
// `op` belongs to the caller again afterwards.
Result<long> run_waiting(FileOp& op, Deadline deadline);
// `op` is null afterwards when it was left.
Result<long> run_or_leave(std::unique_ptr<FileOp>& op, Deadline deadline);
// As run_waiting, but neither a cancel nor a deadline keeps it from being made, nor a place where
// parking is forbidden (there it blocks the thread).
long run_always(FileOp& op) noexcept;

}  // namespace runloom::net
