// Channel: one c-ares channel and its sockets, the only place that calls c-ares.
//
// c-ares sends questions, waits for answers, tries again, changes servers, and goes to TCP when an
// answer was truncated. Everything before and after, which names to ask for and what an answer
// means, is ours, and so are the descriptors (ares_set_socket_functions). It sees stand-ins of the
// messages (stand_in.hpp), so the versions behave alike.
//
// Rules:
// - One thread at a time: a channel belongs to a hub (I2), or to a call of an OS thread.
// - No call of c-ares is made inside one of its callbacks: a callback notes the outcome in a list,
//   and whoever made the call takes the list when c-ares has returned (D10). Debug builds end the
//   process where that is broken.
// - Nothing parks inside a call of c-ares (I4); a park there is refused.
// - ares_cancel is never called: it would end other waiters' questions. A question that nobody
//   waits for any more runs to its end, or ends with the channel.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "counters.hpp"
#include "message.hpp"
#include "runloom/net/address.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"
#include "servers.hpp"
#include "stand_in.hpp"

struct iovec;
struct ares_channeldata;

namespace runloom::dns {

struct ChannelSettings {
  std::vector<net::Address> servers;
  std::chrono::milliseconds timeout{5000};
  int attempts = 2;
  bool rotate = false;
  bool use_tcp = false;
};

// A question on its way. The owner keeps it until it is taken from the list of the ended ones.
struct Exchange {
  std::vector<std::byte> question;  // whole; it goes out with an id of its own
  // A server that can't read it is asked again without its EDNS record.
  bool may_drop_edns = false;

  // When it has ended:
  std::vector<std::byte> answer;  // empty: see error
  std::error_code error;
  // What a server said that could not serve the question (SERVFAIL, NOTIMP, REFUSED), the last one.
  std::vector<std::byte> refusal;

  // The channel's.
  class Channel* channel = nullptr;
  Exchange* next_ended = nullptr;
  bool in_flight = false;
  bool sent = false;
  bool without_edns = false;
  std::uint16_t id = 0;
  std::uint32_t number = 0;  // of its stand-in
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
  // Whether it has sent as many questions from its ports as it should, and another one is due.
  bool used_up() const noexcept;
  // What has happened on a socket, as bits of net::kRead and kWrite.
  void process(int fd, unsigned ready);
  // Tries again, or gives up, what has waited long enough.
  void process_timeouts();
  // When process_timeouts() will have something to do.
  Deadline next_timeout() const;
  // The questions that have ended since, as a list by next_ended.
  Exchange* take_ended() noexcept;
  std::size_t in_flight() const noexcept { return in_flight_.size(); }
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
    unsigned wanted = 0;        // the directions that c-ares waits for
    // TCP:
    std::vector<std::byte> unsent;  // the rest of questions that the kernel took in part
    MessageStream received;
    std::vector<std::byte> digested;  // stand-ins that c-ares has not taken yet
  };
  class Call;

  Channel(const ChannelSettings& settings, Counters& counters, Servers& servers,
          SocketTable& table) noexcept;
  std::error_code open();
  std::uint16_t fresh_id();
  void give_id(Exchange& exchange, std::uint16_t id);
  void ended(Exchange& exchange, int status, int timeouts);
  void judge_silence(const OpenSocket& socket, std::int64_t now);
  // Between c-ares and the kernel; -1 and errno as the system calls.
  ssize_t transmit(int fd, std::span<const iovec> stand_ins);
  ssize_t receive_datagram(int fd, std::span<std::byte> stand_in, sockaddr* from,
                           socklen_t* from_size);
  ssize_t receive_stream(int fd, std::span<std::byte> stand_in);
  // The real question for one that c-ares sends; empty: nobody waits for it any more.
  Bytes substitute(Bytes stand_in);
  // Takes what a message says. None: it answers nothing of ours, or c-ares need not know of it.
  Exchange* digest(int fd, OpenSocket& socket, Bytes message);
  Bytes real_question(const Exchange& exchange);
  void ask_again(int fd, OpenSocket& socket, Exchange& exchange);
  void send_unsent(int fd, OpenSocket& socket);
  void note_failure(const OpenSocket& socket);
  void interest(int fd);

  ChannelSettings settings_;
  Counters& counters_;
  Servers& servers_;
  SocketTable& table_;
  ares_channeldata* ares_ = nullptr;
  std::unordered_map<std::uint32_t, Exchange*> in_flight_;  // by number
  std::unordered_map<std::uint16_t, Exchange*> by_id_;
  Exchange* first_ended_ = nullptr;
  Exchange** last_ended_ = &first_ended_;
  std::vector<Socket> interest_;
  std::unordered_map<int, OpenSocket> open_;
  std::vector<int> retired_;
  std::uint32_t sent_ = 0;
  std::uint64_t version_ = 0;
  std::vector<std::byte> out_, in_, question_;  // room for one message at a time
  int budget_ = 0;                              // datagrams that this call may still take
  bool destroyed_ = false;
};

}  // namespace runloom::dns
