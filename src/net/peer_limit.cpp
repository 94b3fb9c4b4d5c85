#include "peer_limit.hpp"

#include <cstring>
#include <new>
#include <utility>

#include "runloom/net/network.hpp"
#include "runloom/sched/deadline.hpp"

namespace runloom::net {
namespace {

// Chosen once: who doesn't know it can't pick addresses that fall into one bucket.
std::uint64_t seed() noexcept {
  static const std::uint64_t value = [] {
    const auto now = static_cast<std::uint64_t>(monotonic_ns());
    return (now ^ reinterpret_cast<std::uintptr_t>(&now)) * 0x9e3779b97f4a7c15u;
  }();
  return value;
}

std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::size_t PeerLimit::Hash::operator()(const Key& key) const noexcept {
  return mix(mix(key[0] ^ seed()) ^ key[1] ^ key[2]);
}

PeerLimit::Ticket::Ticket(Ticket&& other) noexcept
    : limit_(std::exchange(other.limit_, nullptr)), key_(other.key_) {}

PeerLimit::Ticket& PeerLimit::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    leave();
    limit_ = std::exchange(other.limit_, nullptr);
    key_ = other.key_;
  }
  return *this;
}

void PeerLimit::Ticket::leave() noexcept {
  if (!limit_) return;
  Shard& shard = limit_->shard(key_);
  const std::lock_guard hold(shard.lock);
  const auto found = shard.counts.find(key_);
  if (--found->second == 0) shard.counts.erase(found);
  limit_ = nullptr;
}

bool PeerLimit::enter(const Address& peer, Ticket& ticket) noexcept {
  if (most_ == 0) return true;
  IpBytes ip(peer);
  if (ip.size == 0) return true;
  if (ip.size == 16)
    for (int bit = prefix_; bit < 128; ++bit)
      ip.bytes[static_cast<std::size_t>(bit / 8)] &=
          static_cast<std::uint8_t>(~(0x80u >> (bit % 8)));
  Key key{0, 0, static_cast<std::uint64_t>(ip.size)};
  std::memcpy(key.data(), ip.bytes.data(), ip.bytes.size());
  Shard& home = shard(key);
  const std::lock_guard hold(home.lock);
  std::size_t* count = nullptr;
  try {
    count = &home.counts[key];
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (*count >= most_) return false;
  ++*count;
  ticket.limit_ = this;
  ticket.key_ = key;
  return true;
}

std::size_t PeerLimit::peers() const noexcept {
  std::size_t total = 0;
  for (const Shard& each : shards_) {
    const std::lock_guard hold(each.lock);
    total += each.counts.size();
  }
  return total;
}

}  // namespace runloom::net
