#include "uring_buffers.hpp"

#include <sys/mman.h>

#include <new>

namespace runloom::net {

std::unique_ptr<UringBuffers> UringBuffers::make(Uring& ring) noexcept {
  static_assert(kRingBytes % 64 == 0 && (kCount & (kCount - 1)) == 0);
  void* memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::unique_ptr<UringBuffers> made(new (std::nothrow) UringBuffers);
  if (!made) {
    ::munmap(memory, kBytes);
    return nullptr;
  }
  made->ring_ = static_cast<io_uring_buf_ring*>(memory);
  made->memory_ = static_cast<std::byte*>(memory) + kRingBytes;
  io_uring_buf_reg registration{};
  registration.ring_addr = reinterpret_cast<std::uintptr_t>(memory);
  registration.ring_entries = kCount;
  registration.bgid = kGroup;
  if (::io_uring_register_buf_ring(&ring.raw(), &registration, 0) != 0) return nullptr;
  io_uring_buf_ring_init(made->ring_);
  for (unsigned index = 0; index < kCount; ++index)
    made->give_back(index);
  return made;
}

UringBuffers::~UringBuffers() {
  ::munmap(ring_, kBytes);
}

}  // namespace runloom::net
