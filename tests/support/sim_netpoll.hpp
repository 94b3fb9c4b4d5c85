// A simulated completion backend: the kind that io_uring is. Operations are submitted, and complete
// later, in an order, after delays and with sizes that a seed chooses; a cancel races with the
// completion. Connections are pipes in memory.
//
// What runs on it proves that a completion backend is one more file behind the seam: Fd, TcpStream
// and TcpListener run unchanged. A TcpListener has a real socket, for its port; its connections
// come from TcpStream::connect on the same network.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runloom/net/netpoll.hpp"

namespace runloom::test {

// What the hubs of one test are connected to. Must outlive their scheduler.
class SimNetwork {
 public:
  explicit SimNetwork(std::uint64_t seed);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // As Options::make_driver.
  std::function<std::unique_ptr<Driver>(Hub&)> driver_maker();
  // Operations that were submitted and have not completed.
  std::size_t in_flight() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace runloom::test
