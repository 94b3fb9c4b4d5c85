#include "impl.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "message.hpp"
#include "runloom/dns/error.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::dns {
namespace {

constexpr std::size_t kMostIdle = 8;

bool system_chosen(const ResolverOptions& options) noexcept {
  const char* chosen = std::getenv("RUNLOOM_DNS");
  return options.system || (chosen && std::string_view(chosen) == "system");
}

}  // namespace

ResolverState::ResolverState(const ResolverOptions& resolver_options)
    : options(resolver_options),
      servers(resolver_options.dead_server),
      config(resolver_options, counters),
      cache(resolver_options.cache_entries, resolver_options.cache_ttl) {}

void ResolverState::abandon() noexcept {
  sockets.close_all();
  config.abandon();
}

Resolver::Impl::Impl(ResolverOptions resolver_options)
    : options(std::move(resolver_options)), system_(system_chosen(options)) {}

Resolver::Impl::~Impl() {
  delete state_.release();
}

ResolverState& Resolver::Impl::state() {
  return state_.get([this] { return new ResolverState(options); });
}

// ---------------------------------------------------------------- whose questions are where

Queries& Resolver::Impl::enter(ResolverState& state, const Hub* hub) {
  std::lock_guard hold(state.mutex);
  if (hub)
    for (const auto& [owner, queries] : state.busy)
      if (owner == hub) return *queries;
  std::unique_ptr<Queries> queries;
  if (state.idle.empty()) {
    queries = std::make_unique<Queries>(
        QueriesContext{state.options, state.counters, state.servers, state.sockets});
  } else {
    queries = std::move(state.idle.back());
    state.idle.pop_back();
  }
  return *state.busy.emplace_back(hub, std::move(queries)).second;
}

void Resolver::Impl::leave(ResolverState& state, const Hub* hub) noexcept {
  std::unique_ptr<Queries> done;
  std::lock_guard hold(state.mutex);
  const auto it = std::find_if(state.busy.begin(), state.busy.end(),
                               [hub](const auto& entry) { return entry.first == hub; });
  if (it == state.busy.end()) return;
  done = std::move(it->second);
  state.busy.erase(it);
  if (done->reusable() && state.idle.size() < kMostIdle) state.idle.push_back(std::move(done));
}

// The pump keeps the resolver.
struct Resolver::Impl::PumpStart {
  Impl& impl;
  ResolverState& state;
  Hub* hub;
  bool begun = false;

  static std::error_code start(Queries& queries, void* arg) {
    auto& self = *static_cast<PumpStart*>(arg);
    auto begun = go(
        [impl = self.impl.shared_from_this(), &state = self.state, hub = self.hub, &queries] {
          queries.pump();
          impl->leave(state, hub);
        },
        {.name = "dns", .hub = self.hub->index()});
    self.begun = static_cast<bool>(begun);
    return begun.error();
  }
};

Result<void> Resolver::Impl::fly(std::span<Queries::Wanted> wanted, const Config& config,
                                 Deadline deadline, const Queries::Early* early) {
  ResolverState& current = state();
  Hub* const hub = detail::fiber_hub();
  if (!hub) {
    // A thread's questions are its own, so nobody else finds them under a hub.
    Queries queries(
        QueriesContext{current.options, current.counters, current.servers, current.sockets});
    return queries.ask(wanted, config, deadline, nullptr, nullptr);
  }
  Queries& queries = enter(current, hub);
  const bool has_pump = queries.busy();
  PumpStart start{*this, current, hub};
  auto flown = queries.ask(wanted, config, deadline, &PumpStart::start, &start, early);
  // Without a pump nobody else gives it back. With one it may be gone by now.
  if (!has_pump && !start.begun) leave(current, hub);
  return flown;
}

// ---------------------------------------------------------------- questions

Result<void> Resolver::Impl::ask(std::string_view name, std::span<const RecordType> types,
                                 std::span<Reply> replies, const Config& config, Deadline deadline,
                                 const EarlyReplies* early) {
  ResolverState& current = state();
  std::vector<Queries::Wanted> wanted;
  wanted.reserve(types.size());
  std::vector<std::size_t> asked;
  for (std::size_t i = 0; i < types.size(); ++i) {
    replies[i].answer = current.cache.find(name, types[i], monotonic_ns());
    if (replies[i].answer) {
      current.counters.from_cache.add();
      continue;
    }
    auto question = make_question(name, types[i], {config.resolv.edns, config.resolv.trust_ad});
    if (!question) {
      replies[i].error = question.error();
      continue;
    }
    wanted.emplace_back().question = *std::move(question);
    asked.push_back(i);
  }
  if (wanted.empty()) return {};
  const auto read = [](const Outcome& outcome, Reply& reply) {
    reply.error = outcome.error;
    if (reply.error) return;
    auto answer = parse_answer(outcome.message);
    if (answer) {
      reply.answer = std::make_shared<const Answer>(*std::move(answer));
    } else {
      reply.error = answer.error();
    }
  };
  Queries::Early part;
  if (early) {
    part.delay = early->delay;
    part.known = std::any_of(replies.begin(), replies.end(),
                             [](const Reply& reply) { return reply.has_records(); });
    part.tell = [&] {
      std::vector<Reply> known(replies.begin(), replies.end());
      for (std::size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i].outcome) read(*wanted[i].outcome, known[asked[i]]);
      early->tell(known);
    };
  }
  if (auto flown = fly(wanted, config, deadline, early ? &part : nullptr); !flown) return flown;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    Reply& reply = replies[asked[i]];
    read(*wanted[i].outcome, reply);
    if (reply.error == Errc::cancelled) return fail(Errc::cancelled);
    if (reply.error) continue;
    current.cache.add(name, types[asked[i]], reply.answer, monotonic_ns());
  }
  return {};
}

Result<std::vector<std::byte>> Resolver::Impl::exchange(std::span<const std::byte> question,
                                                        const Config& config, Deadline deadline) {
  if (question.size() > kMostMessage || !question_end(question)) return fail(DnsErrc::bad_answer);
  const std::uint16_t id = message_id(question);
  std::vector<Queries::Wanted> wanted(1);
  wanted[0].question.assign(question.begin(), question.end());
  wanted[0].exact = true;
  if (auto flown = fly(wanted, config, deadline); !flown) return Unexpected{flown.error()};
  const Outcome& outcome = *wanted[0].outcome;
  std::vector<std::byte> message = outcome.error ? outcome.refusal : outcome.message;
  if (message.empty()) return Unexpected{outcome.error};
  set_id(message, id);
  return message;
}

}  // namespace runloom::dns
