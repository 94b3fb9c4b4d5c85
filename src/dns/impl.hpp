// Resolver::Impl: what a resolver keeps, and the questions that its calls ask.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cache.hpp"
#include "config_keeper.hpp"
#include "counters.hpp"
#include "process_state.hpp"
#include "queries.hpp"
#include "runloom/dns/resolver.hpp"
#include "servers.hpp"
#include "socket_table.hpp"

namespace runloom {
class Hub;
}

namespace runloom::dns {

// What a forked child has afresh.
struct ResolverState {
  explicit ResolverState(const ResolverOptions& resolver_options);
  void abandon() noexcept;

  unsigned fork = 0;
  const ResolverOptions& options;
  Counters counters;
  Servers servers;
  SocketTable sockets;
  ConfigKeeper config;
  Cache cache;

  std::mutex mutex;
  // Guarded by mutex: which hub's questions are where, while it has any; and what waits for a hub.
  std::vector<std::pair<const Hub*, std::unique_ptr<Queries>>> busy;
  std::vector<std::unique_ptr<Queries>> idle;
};

// How one question for records ended.
struct Reply {
  std::shared_ptr<const Answer> answer;  // null: see error
  std::error_code error;                 // no server gave an answer: server_failure and so on
  bool has_records() const noexcept {
    return answer && answer->rcode == 0 && !answer->answers.empty();
  }
};

// Who can do with a part of the replies: see Queries::Early. Those that have not come are empty.
struct EarlyReplies {
  std::chrono::nanoseconds delay{0};
  std::function<void(std::span<const Reply>)> tell;
};

class Resolver::Impl : public std::enable_shared_from_this<Resolver::Impl> {
 public:
  explicit Impl(ResolverOptions resolver_options);
  ~Impl();

  const ResolverOptions options;
  bool uses_system() const noexcept { return system_; }
  ResolverState& state();

  // Asks for records of one name, all types at once, and waits for all. An error is the caller's
  // own: cancelled, timed_out, no fiber to be had.
  Result<void> ask(std::string_view name, std::span<const RecordType> types,
                   std::span<Reply> replies, const Config& config, Deadline deadline,
                   const EarlyReplies* early = nullptr);
  Result<std::vector<std::byte>> exchange(std::span<const std::byte> question, const Config& config,
                                          Deadline deadline);

 private:
  struct PumpStart;
  Result<void> fly(std::span<Queries::Wanted> wanted, const Config& config, Deadline deadline,
                   const Queries::Early* early = nullptr);
  // The hub's questions, taken from the idle ones if it has none in flight.
  Queries& enter(ResolverState& state, const Hub* hub);
  void leave(ResolverState& state, const Hub* hub) noexcept;

  const bool system_;
  ForkSafe<ResolverState> state_;
};

}  // namespace runloom::dns
