// Channel: one c-ares channel and its sockets, the only place that calls c-ares.
//
// c-ares sends questions, waits for answers, tries again, changes servers, and goes to TCP when an
// answer was truncated. Everything before and after, which names to ask for and what an answer
// means, is ours, and so are the descriptors (ares_set_socket_functions).
//
// Rules, each checked in debug builds:
// - One thread at a time: a channel belongs to a hub (I2), or to a call of an OS thread.
// - No call of c-ares is made inside one of its callbacks: a callback notes the outcome in a list,
// and
//   whoever made the call takes the list when c-ares has returned (D10).
// - Nothing parks inside a call of c-ares (I4).
// - ares_cancel is never called: it would end other waiters' questions. A question that nobody
// waits
//   for any more runs to its end, or ends with the channel.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "counters.hpp"
#include "message.hpp"
#include "runloom/net/address.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"
#include "servers.hpp"

struct ares_channeldata;

namespace runloom::dns {

struct ChannelSettings {
  std::vector<net::Address> servers;
  std::chrono::milliseconds timeout{5000};
  int attempts = 2;
  bool rotate = false;
  bool use_tcp = false;
  bool edns = false;
};

// A question on its way. The owner keeps it until it is taken from the list of the ended ones.
struct Exchange {
  std::vector<std::byte> question;  // whole; the channel gives it an id

  // When it has ended:
  std::vector<std::byte> answer;  // empty: see error
  std::error_code error;
  // What a server said that could not serve the question (SERVFAIL, NOTIMP, REFUSED), the last one.
  std::vector<std::byte> refusal;

  // The channel's.
  class Channel* channel = nullptr;
  Exchange* next_ended = nullptr;
  bool in_flight = false;
};

// Numbers of sockets that are open now, so that a forked child can close them.
class SocketTable;

class Channel {
 public:
  static Result<std::unique_ptr<Channel>> make(const ChannelSettings& settings, Counters& counters,
                                               Servers& servers, SocketTable& table);
  // Ends what is in flight; then ended() has it.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Sends it now. It may have ended when this returns.
  void send(Exchange& exchange);
  // What has happened on a socket, as bits of net::kRead and kWrite.
  void process(int fd, unsigned ready);
  // Tries again, or gives up, what has waited long enough.
  void process_timeouts();
  // When process_timeouts() will have something to do.
  Deadline next_timeout() const;
  // The questions that have ended since, as a list by next_ended.
  Exchange* take_ended() noexcept;
  std::size_t in_flight() const noexcept { return in_flight_.size(); }
  std::uint64_t sent() const noexcept { return sent_; }
  // Ends every question in flight with cancelled, and the channel.
  void end_all();
  bool usable() const noexcept { return ares_ != nullptr; }

  struct Socket {
    int fd;
    unsigned directions;  // to wait for; 0: none
  };
  const std::vector<Socket>& sockets() const noexcept { return interest_; }
  // Changes whenever sockets() does, and when there is something to close.
  std::uint64_t version() const noexcept { return version_; }
  // Sockets that c-ares is done with stay open, and their numbers taken, until nobody waits on
  // them.
  void close_retired() noexcept;

 private:
  friend struct AresCallbacks;
  struct OpenSocket {
    net::Address peer;
    bool tcp = false;
    std::int64_t asked_at = 0;  // of the oldest question that nothing came after; 0: none
  };
  class Call;

  Channel(const ChannelSettings& settings, Counters& counters, Servers& servers,
          SocketTable& table) noexcept;
  std::error_code open();
  std::uint16_t fresh_id();
  void ended(Exchange& exchange, int status, int timeouts, Bytes answer);
  void judge_silence(const OpenSocket& socket, std::int64_t now);
  bool plausible(Bytes datagram);
  void interest(int fd, unsigned directions);

  ChannelSettings settings_;
  Counters& counters_;
  Servers& servers_;
  SocketTable& table_;
  ares_channeldata* ares_ = nullptr;
  std::unordered_map<std::uint16_t, Exchange*> in_flight_;
  Exchange* first_ended_ = nullptr;
  Exchange** last_ended_ = &first_ended_;
  std::vector<Socket> interest_;
  std::unordered_map<int, OpenSocket> open_;
  std::vector<int> retired_;
  std::uint64_t sent_ = 0;
  std::uint64_t version_ = 0;
  int budget_ = 0;  // datagrams that this call may still take
  bool destroyed_ = false;
};

}  // namespace runloom::dns
