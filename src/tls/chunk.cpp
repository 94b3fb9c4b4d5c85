#include "chunk.hpp"

#include <new>

namespace runloom::tls {
namespace {

template <std::size_t kSize, std::size_t kKept>
class FreeList {
 public:
  FreeList() noexcept = default;
  ~FreeList() {
    while (Chunk* const chunk = first_) {
      first_ = chunk->next;
      ::operator delete(chunk);
    }
  }
  Chunk* take() noexcept {
    if (Chunk* const chunk = first_) {
      first_ = chunk->next;
      --count_;
      return new (chunk) Chunk{.capacity = kSize};
    }
    void* const memory = ::operator new(sizeof(Chunk) + kSize, std::nothrow);
    return memory ? new (memory) Chunk{.capacity = kSize} : nullptr;
  }
  void give(Chunk* chunk) noexcept {
    if (count_ == kKept) return ::operator delete(chunk);
    chunk->next = first_;
    first_ = chunk;
    ++count_;
  }

 private:
  Chunk* first_ = nullptr;
  std::size_t count_ = 0;
};

struct Pools {
  FreeList<kSmallChunk, 128> small;
  FreeList<kLargeChunk, 8> large;
};
// Not inlined: a fiber that goes on elsewhere must not have kept the address.
[[gnu::noinline]] Pools& pools() noexcept {
  thread_local Pools pools;
  return pools;
}

}  // namespace

void ReturnChunk::operator()(Chunk* chunk) const noexcept {
  if (chunk->capacity == kSmallChunk) {
    pools().small.give(chunk);
  } else {
    pools().large.give(chunk);
  }
}

ChunkPtr take_chunk(std::size_t count) noexcept {
  return ChunkPtr(count <= kSmallChunk ? pools().small.take() : pools().large.take());
}

}  // namespace runloom::tls
