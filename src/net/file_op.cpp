#include "file_op.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <mutex>

namespace runloom::net {
namespace {

// The kernel's own answer, which glibc's functions give as -1 and errno.
template <class Call>
long retry(Call&& call) noexcept {
  for (;;) {
    const long value = call();
    if (value >= 0) return value;
    if (errno != EINTR) return -errno;
  }
}

off_t* at(off_t& offset) noexcept {
  return offset < 0 ? nullptr : &offset;
}

}  // namespace

AlignedMemory allocate_aligned(std::size_t size) noexcept {
  return AlignedMemory(static_cast<std::byte*>(
      ::operator new[](size == 0 ? 1 : size, std::align_val_t{4096}, std::nothrow)));
}

FileOp::FileOp(FileCall what) noexcept : call(what) {
  run = [](detail::BlockingJob& job) noexcept {
    auto& op = static_cast<FileOp&>(job);
    op.complete(op.perform());
  };
}

long FileOp::perform() noexcept {
  const auto count = static_cast<int>(vector_count);
  switch (call) {
    case FileCall::read:
      return retry([&] { return ::preadv2(fd, vectors, count, offset, 0); });
    case FileCall::write:
      return retry([&] { return ::pwritev2(fd, vectors, count, offset, 0); });
    case FileCall::sync:
      return retry([&] { return ::fsync(fd); });
    case FileCall::data_sync:
      return retry([&] { return ::fdatasync(fd); });
    case FileCall::allocate:
      return retry([&] { return ::fallocate(fd, 0, offset, static_cast<off_t>(size)); });
    case FileCall::truncate:
      return retry([&] { return ::ftruncate(fd, static_cast<off_t>(size)); });
    case FileCall::status:
      return retry([&] { return ::statx(fd, path.c_str(), flags, STATX_BASIC_STATS, &status); });
    case FileCall::open:
      return retry([&] { return ::openat(fd, path.c_str(), flags | O_CLOEXEC, mode); });
    case FileCall::close:
      // On Linux the number is free also after EINTR, which is no failure of what was written.
      return ::close(fd) == 0 || errno == EINTR ? 0 : -errno;
    case FileCall::rename:
      return retry([&] { return ::rename(path.c_str(), other_path.c_str()); });
    case FileCall::remove:
      return retry([&] { return ::unlinkat(AT_FDCWD, path.c_str(), flags); });
    case FileCall::make_directory:
      return retry([&] { return ::mkdir(path.c_str(), mode); });
    case FileCall::list:
      return retry([&] { return ::syscall(SYS_getdents64, fd, memory.get(), size); });
    case FileCall::copy:
      return retry(
          [&] { return ::copy_file_range(fd, at(offset), other_fd, at(other_offset), size, 0); });
    case FileCall::splice:
      return retry([&] {
        return ::splice(fd, at(offset), other_fd, at(other_offset), size,
                        static_cast<unsigned>(flags));
      });
  }
  return -ENOSYS;
}

// `done` is set and the wait claimed in one step: either the fiber is still parked and woken here,
// or its wait ended otherwise and it finds `done` when it gets the lock. In the second case its
// frame, and the operation in it, may be gone as soon as the lock is free.
void FileOp::complete(long value) noexcept {
  detail::Waiter* waiter = nullptr;
  bool orphan;
  {
    std::lock_guard hold(lock);
    result = value;
    done = true;
    orphan = left;
    if (!orphan && detail::claim(token, detail::kWakeUser)) waiter = token.waiter;
  }
  if (waiter) detail::schedule(waiter);
  if (orphan) {
    clean_up();
    delete this;
  }
}

void FileOp::clean_up() noexcept {
  if (call == FileCall::open && result >= 0) ::close(static_cast<int>(result));
  // The kernel tells of a failed write-back once a descriptor: whoever syncs or closes next shall
  // hear of it.
  if ((call == FileCall::sync || call == FileCall::data_sync) && result < 0 && use)
    use.state().late_error.store(static_cast<int>(-result), std::memory_order_relaxed);
}

}  // namespace runloom::net
