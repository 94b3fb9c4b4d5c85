// Chunks: memory for ciphertext on its way, from a pool of the thread.
//
// A connection holds chunks only while ciphertext is in them, so that an idle one costs none, and
// the few that a hub uses stay warm in its cache. What is decrypted never stands in one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace runloom::tls {

struct Chunk {
  Chunk* next = nullptr;
  std::uint32_t begin = 0;  // the bytes that are there: [begin, end)
  std::uint32_t end = 0;
  std::uint32_t capacity = 0;

  std::byte* data() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
  std::size_t size() const noexcept { return end - begin; }
  std::size_t room() const noexcept { return capacity - end; }
};

struct ReturnChunk {
  void operator()(Chunk* chunk) const noexcept;
};
using ChunkPtr = std::unique_ptr<Chunk, ReturnChunk>;

// Of all four records of 16 KiB that a bulk transfer moves at once, with what TLS adds to them.
inline constexpr std::size_t kLargeChunk = 4 * (16384 + 256 + 5);
// Most handshake flights, and small messages.
inline constexpr std::size_t kSmallChunk = 4096 - sizeof(Chunk);

// An empty chunk with room for `count` bytes, or the largest there is; null without memory. Any
// thread, doesn't park; a chunk may be given back on another one.
ChunkPtr take_chunk(std::size_t count) noexcept;

}  // namespace runloom::tls
