#include "runloom/net/copy.hpp"

#include <cerrno>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

#include "runloom/net/fd.hpp"

namespace runloom::net {
namespace {

// Large enough that big transfers take few system calls, small enough to stay in a cache.
constexpr std::size_t kLarge = 64 * 1024;
// For what came already and is little.
constexpr std::size_t kSmall = 4 * 1024;

// The buffers of a thread, and so of its hub, that are free. The one that was given back last is
// taken first: where no write has to wait, one buffer, warm in the cache, serves all.
template <std::size_t kSize, std::size_t kKept>
class Pool {
 public:
  using Buffer = std::unique_ptr<std::byte[]>;

  Pool() noexcept = default;
  Buffer take() noexcept {
    if (count_ != 0) return std::move(free_[--count_]);
    return Buffer(new (std::nothrow) std::byte[kSize]);
  }
  void give(Buffer buffer) noexcept {
    if (count_ < kKept) free_[count_++] = std::move(buffer);
  }

 private:
  Buffer free_[kKept];
  std::size_t count_ = 0;
};

struct Pools {
  Pool<kSmall, 256> small;
  Pool<kLarge, 8> large;
};
Pools& pools() noexcept {
  thread_local Pools pools;
  return pools;
}

// Holds a buffer from when bytes are there to be read until they are written.
class Lease final : public RecvBuffer {
 public:
  Lease() = default;
  ~Lease() { release(); }

  std::span<std::byte> take() noexcept override { return take_for(kLarge); }
  std::span<std::byte> take_for(std::size_t count) noexcept override {
    const std::size_t size = count <= kSmall ? kSmall : kLarge;
    if (!buffer_) {
      buffer_ = size == kSmall ? pools().small.take() : pools().large.take();
      size_ = size;
    }
    return {buffer_.get(), buffer_ ? size_ : 0};
  }
  std::size_t room() const noexcept override { return kLarge; }
  void give_back(std::ptrdiff_t count) noexcept override {
    if (count > 0) return;
    const int err = errno;
    release();
    errno = err;
  }
  std::span<const std::byte> filled(std::size_t count) const noexcept {
    return {buffer_.get(), count};
  }
  void release() noexcept {
    if (!buffer_) return;
    size_ == kSmall ? pools().small.give(std::move(buffer_))
                    : pools().large.give(std::move(buffer_));
  }

 private:
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t size_ = 0;
};

Deadline limit(const CopyOptions& options) noexcept {
  if (options.idle <= std::chrono::nanoseconds::zero()) return options.deadline;
  return Deadline::earlier(options.deadline, Deadline::after(options.idle));
}

// One read and the write of what it brought, which counts into `copied`. False at the end.
Result<bool> step(Stream& from, Stream& to, const CopyOptions& options, std::uint64_t& copied) {
  Lease lease;
  RUNLOOM_TRY(const std::size_t count, from.read_late(lease, limit(options)));
  if (count == 0) return false;
  std::span<const std::byte> left = lease.filled(count);
  while (!left.empty()) {
    RUNLOOM_TRY(const std::size_t written, to.write_some(left, limit(options)));
    copied += written;
    left = left.subspan(written);
    // Each transfer makes an attempt even past the deadline; the whole must not go on for ever.
    if (options.deadline.passed()) return fail(Errc::timed_out);
  }
  return true;
}

}  // namespace

Result<std::uint64_t> copy(Stream& from, Stream& to, const CopyOptions& options,
                           std::uint64_t* bytes_copied) {
  std::uint64_t copied = 0;
  Result<bool> more = true;
  while (more && *more)
    more = step(from, to, options, copied);
  if (bytes_copied) *bytes_copied = copied;
  if (!more) return Unexpected{more.error()};
  return copied;
}

}  // namespace runloom::net
