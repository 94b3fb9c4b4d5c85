// UringBuffers: memory that the ring chooses from when bytes have come, so that a receive that
// waits holds none. A few buffers serve all connections of a hub and stay in its cache.
//
// A buffer that a completion has named is the caller's until give_back(). On the hub's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runloom/sched/result.hpp"
#include "uring.hpp"

namespace runloom::net {

class UringBuffers {
 public:
  static constexpr std::size_t kSize = 2048;  // bytes of one
  static constexpr unsigned kCount = 512;     // a power of two
  static constexpr std::uint16_t kGroup = 1;

  // Registers them with `ring`. Null: this kernel can't, or there is no memory.
  static std::unique_ptr<UringBuffers> make(Uring& ring) noexcept;
  // After the ring: the kernel writes to them as long as it lives.
  ~UringBuffers();
  UringBuffers(const UringBuffers&) = delete;
  UringBuffers& operator=(const UringBuffers&) = delete;

  // Makes the receive use one of them. It fails with ENOBUFS when all are taken.
  static void select(io_uring_sqe& sqe) noexcept {
    sqe.flags |= IOSQE_BUFFER_SELECT;
    sqe.buf_group = kGroup;
  }
  // The buffer that a completion names.
  static unsigned index_of(std::uint32_t flags) noexcept {
    return flags >> IORING_CQE_BUFFER_SHIFT;
  }
  std::span<const std::byte> bytes(unsigned index, std::size_t count) const noexcept {
    return {memory_ + index * kSize, count};
  }
  void give_back(unsigned index) noexcept {
    io_uring_buf_ring_add(ring_, memory_ + index * kSize, kSize, static_cast<std::uint16_t>(index),
                          io_uring_buf_ring_mask(kCount), 0);
    io_uring_buf_ring_advance(ring_, 1);
  }

 private:
  UringBuffers() = default;
  static constexpr std::size_t kRingBytes = kCount * sizeof(io_uring_buf);
  static constexpr std::size_t kBytes = kRingBytes + kCount * kSize;
  io_uring_buf_ring* ring_ = nullptr;
  std::byte* memory_ = nullptr;
};

}  // namespace runloom::net
