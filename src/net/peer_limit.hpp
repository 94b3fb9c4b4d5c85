// How many connections each peer has, and no more than it may.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "runloom/net/address.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom::net {

// Any thread; parks never. Memory is held for peers that have connections only, so the server's
// number of connections bounds it.
class PeerLimit {
 public:
  // At most `most` connections a peer, any number for 0; a peer of IPv6 is a network of `prefix`
  // bits.
  PeerLimit(std::size_t most, int ipv6_prefix) noexcept : most_(most), prefix_(ipv6_prefix) {}

  // One connection's place. Movable; leaves when it is destroyed.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { leave(); }

   private:
    friend class PeerLimit;
    void leave() noexcept;
    PeerLimit* limit_ = nullptr;
    std::array<std::uint64_t, 3> key_{};
  };

  // False: the peer has its connections already, or there is no memory to count one more.
  // An address that is none of IP has a place always.
  bool enter(const Address& peer, Ticket& ticket) noexcept;
  // Peers that have connections.
  std::size_t peers() const noexcept;

 private:
  using Key = std::array<std::uint64_t, 3>;  // the address's bytes and their number
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  // Hubs accept at the same time; few meet in one of these.
  struct Shard {
    mutable detail::SpinLock lock{detail::LockRank::primitive};
    std::unordered_map<Key, std::size_t, Hash> counts;
  };
  static constexpr std::size_t kShards = 16;

  Shard& shard(const Key& key) noexcept { return shards_[(Hash{}(key) >> 7) % kShards]; }

  const std::size_t most_;
  const int prefix_;
  std::array<Shard, kShards> shards_;
};

}  // namespace runloom::net
