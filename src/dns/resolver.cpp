#include "runloom/dns/resolver.hpp"

#include <utility>

#include "impl.hpp"
#include "message.hpp"
#include "runloom/dns/error.hpp"

namespace runloom::dns {

Resolver::Resolver(ResolverOptions options) : impl_(std::make_shared<Impl>(std::move(options))) {}

Resolver::~Resolver() = default;

Resolver& Resolver::process() {
  static Resolver* const resolver = new Resolver();
  return *resolver;
}

namespace {

Result<std::shared_ptr<const Answer>> find(Resolver::Impl& impl, std::string_view name,
                                           RecordType type, Deadline deadline) {
  RUNLOOM_TRY(const auto config, impl.state().config.get(deadline));
  Reply reply;
  const auto asked = impl.ask(name, std::span(&type, 1), std::span(&reply, 1), *config, deadline);
  if (!asked) return Unexpected{asked.error()};
  if (!reply.answer) return fail(reply.error);
  switch (reply.answer->rcode) {
    case 0:
      break;
    case 3:
      return fail(DnsErrc::not_found);
    case 2:
      return fail(DnsErrc::server_failure);
    case 5:
      return fail(DnsErrc::refused);
    default:
      return fail(DnsErrc::failure);
  }
  for (const Record& record : reply.answer->answers)
    if (record.type == type || type == RecordType::any) return std::move(reply.answer);
  return fail(DnsErrc::no_data);
}

}  // namespace

Result<std::shared_ptr<const Answer>> Resolver::query(std::string_view name, RecordType type,
                                                      Deadline deadline) {
  Impl& impl = *impl_;
  impl.state().counters.lookups.add();
  auto found = find(impl, name, type, deadline);
  if (!found) impl.state().counters.failed.add();
  return found;
}

Result<std::vector<std::byte>> Resolver::exchange(std::span<const std::byte> question,
                                                  Deadline deadline) {
  Impl& impl = *impl_;
  impl.state().counters.lookups.add();
  auto answer = [&]() -> Result<std::vector<std::byte>> {
    RUNLOOM_TRY(const auto config, impl.state().config.get(deadline));
    return impl.exchange(question, *config, deadline);
  }();
  if (!answer) impl.state().counters.failed.add();
  return answer;
}

Result<void> Resolver::reload(Deadline deadline) {
  const auto read = impl_->state().config.reload(deadline);
  if (!read) return Unexpected{read.error()};
  return {};
}

void Resolver::clear_cache() noexcept {
  impl_->state().cache.clear();
}

ResolverStats Resolver::stats() const {
  ResolverState& state = impl_->state();
  const Counters& counters = state.counters;
  ResolverStats out;
  out.lookups = counters.lookups.get();
  out.numeric = counters.numeric.get();
  out.from_files = counters.from_files.get();
  out.from_cache = counters.from_cache.get();
  out.queries = counters.queries.get();
  out.coalesced = counters.coalesced.get();
  out.timeouts = counters.timeouts.get();
  out.tcp_connections = counters.tcp_connections.get();
  out.dropped = counters.dropped.get();
  out.failed = counters.failed.get();
  out.in_flight = counters.in_flight.get();
  out.cached = state.cache.size();
  out.reloads = counters.reloads.get();
  out.system_calls = counters.system_calls.get();
  const std::int64_t now = monotonic_ns();
  out.dead_servers = state.servers.dead(now);
  if (const auto config = state.config.peek()) {
    out.servers = state.servers.order(config->resolv.servers, now).servers;
    for (const Source& source : config->sources)
      if (source.kind == Source::Kind::other) out.ignored_sources.push_back(source.name);
  }
  return out;
}

}  // namespace runloom::dns
