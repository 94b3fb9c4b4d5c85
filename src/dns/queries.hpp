// Queries: the questions of one hub that are in flight, their waiters, and the fiber that waits for
// the sockets on behalf of all of them.
//
// - Everything here belongs to one hub's thread (I2) from the first waiter to the last; then it
// goes
//   back to the resolver, for any hub. An OS thread has one for the time of a call, and no fiber:
//   it waits in poll(2) itself.
// - Equal questions are asked once; each waiter has its own deadline and can be cancelled. A
// question
//   whose last waiter left runs on while others wait for something, because c-ares can only end all
//   of a channel's questions at once; when nobody waits for anything any more the channel ends.
// - A channel is replaced, and the old one finishes its questions, when the configuration or the
//   order of the servers changed, and after some hundred questions, so that the port changes too.
// - The pump is a fiber named "dns" that lives while there are waiters, so that an idle hub has no
//   socket, no timer and no fiber of ours.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "channel.hpp"
#include "config.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::dns {

// How a question ended.
struct Outcome {
  std::vector<std::byte> message;  // empty: see error
  std::error_code error;
  std::vector<std::byte> refusal;  // see Exchange
};

// What a channel is made from, and where questions are counted.
struct QueriesContext {
  const ResolverOptions& options;
  Counters& counters;
  Servers& servers;
  SocketTable& sockets;
};

class Queries {
 public:
  explicit Queries(const QueriesContext& context) noexcept;
  ~Queries();
  Queries(const Queries&) = delete;
  Queries& operator=(const Queries&) = delete;

  struct Query;
  struct Flight;
  // One question that somebody waits for. On the waiter's stack.
  struct Wanted {
    std::vector<std::byte> question;  // whole
    bool exact = false;               // the case of the name counts
    std::shared_ptr<const Outcome> outcome;

    Query* query = nullptr;
    Flight* flight = nullptr;
    Wanted* prev = nullptr;
    Wanted* next = nullptr;
  };

  // For who can do with a part of the outcomes: tell() is called once, on the waiting fiber, when
  // one with records has come (or `known`: there is one already) and others have not `delay` later.
  // It must not park.
  struct Early {
    std::chrono::nanoseconds delay{0};
    bool known = false;
    std::function<void()> tell;
  };

  // Asks all of them and waits for all. On a fiber, start_pump(*this) is called when the pump has
  // to be started. An outcome that is null in the end: the wait failed before it came. On a thread
  // nobody is told early.
  using StartPump = std::error_code (*)(Queries& queries, void* arg);
  Result<void> ask(std::span<Wanted> wanted, const Config& config, Deadline deadline,
                   StartPump start_pump, void* arg, const Early* early = nullptr);
  // The pump, on a fiber of the hub; returns when nobody waits any more.
  void pump();
  bool busy() const noexcept { return waiters_ > 0 || pumping_; }
  // False once its scheduler has ended: it is of no use any more.
  bool reusable() const noexcept { return !ended_; }

 private:
  std::error_code provide_channel(const Config& config);
  void attach(Wanted& wanted, Flight& flight);
  void detach(Wanted& wanted) noexcept;
  // Hands out what has ended.
  void deliver();
  void finish(Query& query);
  void note_change() noexcept;
  // Waits until a socket or a timeout is due, and lets c-ares at it. False: it did not park.
  bool wait_for_events();
  Result<void> wait_on_fiber(std::span<Wanted> wanted, Flight& flight, Deadline deadline,
                             const Early* early);
  Result<void> wait_on_thread(Flight& flight, Deadline deadline);
  void wait_on_poll(Deadline deadline, std::error_code& error);
  void after_events();
  Deadline next_timeout() const;
  std::uint64_t version() const noexcept;
  void retire() noexcept;

  const QueriesContext context_;
  std::vector<std::unique_ptr<Channel>> channels_;  // the newest last; the others finish
  unsigned long config_generation_ = 0;             // of the newest one
  std::uint64_t servers_version_ = 0;
  std::unordered_map<std::string, std::unique_ptr<Query>> queries_;
  std::size_t waiters_ = 0;
  bool pumping_ = false;
  bool ended_ = false;  // the scheduler ends
  // While the pump is parked:
  const detail::WaitToken* pump_token_ = nullptr;
  std::uint64_t pump_version_ = 0;
  Deadline pump_deadline_{};
};

}  // namespace runloom::dns
