// Bytes that tell which stream they belong to and where in it they stand, and a digest of those
// that came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace runloom::test {

// The finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
// generators", 2014).
constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// One direction of a stream, at one of its ends.
class Flow {
 public:
  Flow(std::uint64_t id, std::size_t size) noexcept : id_(id), size_(size) {}

  std::size_t size() const noexcept { return size_; }
  std::size_t position() const noexcept { return position_; }
  std::size_t left() const noexcept { return size_ - position_; }
  // Of the bytes up to the position: equal at both ends when the same bytes passed.
  std::uint64_t digest() const noexcept { return digest_; }

  // The next bytes to send, which pass.
  void make(std::span<std::byte> out) noexcept {
    for (std::byte& byte : out)
      byte = next();
  }
  // Bytes that were received: false when one of them is not the next.
  bool take(std::span<const std::byte> in) noexcept {
    if (in.size() > left()) return false;
    for (const std::byte byte : in)
      if (byte != next()) return false;
    return true;
  }

 private:
  std::byte next() noexcept {
    if (position_ % 8 == 0) word_ = mix64(id_ + (position_ / 8 + 1) * 0x9e3779b97f4a7c15);
    const auto byte = static_cast<std::byte>(word_ >> (position_ % 8 * 8));
    digest_ = (digest_ ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;  // FNV-1a
    ++position_;
    return byte;
  }

  std::uint64_t id_;
  std::size_t size_;
  std::size_t position_ = 0;
  std::uint64_t word_ = 0;
  std::uint64_t digest_ = 0xcbf29ce484222325;
};

}  // namespace runloom::test
