#include "lookup.hpp"

#include <netdb.h>

#include <algorithm>
#include <cstring>

#include "message.hpp"
#include "runloom/dns/error.hpp"
#include "search.hpp"

namespace runloom::dns {
namespace {

constexpr int kMostAliases = 64;

// What one source said, in the terms of getaddrinfo's loop over the sources.
struct Said {
  Status status = Status::not_found;
  Found found;
  bool no_data = false;
  std::error_code again;  // nobody could answer: why
};

// The addresses of an answer, reached from its question by the aliases in it: a record of another
// name is none of ours, whoever put it there.
void take_addresses(const Reply& reply, Found& found, bool takes_canonical) {
  if (!reply.has_records()) return;
  const Answer& answer = *reply.answer;
  std::string_view name = answer.name;
  for (int i = 0; i < kMostAliases; ++i) {
    const auto alias =
        std::find_if(answer.answers.begin(), answer.answers.end(), [&](const Record& record) {
          return record.type == RecordType::cname && same_name(record.name, name);
        });
    if (alias == answer.answers.end()) break;
    name = std::get<NameData>(alias->data).name;
  }
  bool any = false;
  for (const Record& record : answer.answers) {
    if (record.record_class != 1 || record.type != answer.type || !same_name(record.name, name))
      continue;
    if (const auto* ip = std::get_if<in_addr>(&record.data)) {
      found.addresses.push_back(IpAddress::ipv4(*ip));
    } else if (const auto* ip6 = std::get_if<in6_addr>(&record.data)) {
      found.addresses.push_back(IpAddress::ipv6(*ip6));
    } else {
      continue;
    }
    any = true;
  }
  if (any && takes_canonical) found.canonical = name;
}

Said said(const SearchResult& result, std::size_t types, int flags) {
  Said out;
  switch (result.miss) {
    case Miss::none:
      for (std::size_t i = 0; i < types; ++i)
        take_addresses(result.replies[i], out.found, out.found.canonical.empty());
      // Nothing but an alias: glibc calls that an unknown host, but where it asks for
      // IPv4 alone and for no canonical name.
      if (!out.found.addresses.empty()) {
        out.status = Status::success;
      } else {
        out.no_data = types == 1 && !(flags & AI_CANONNAME) &&
                      result.replies[0].answer->type == RecordType::a;
      }
      break;
    case Miss::no_data:
      out.no_data = true;
      break;
    case Miss::try_again:
      out.status = Status::unavailable;
      out.again = result.why ? result.why : make_error_code(DnsErrc::no_answer);
      break;
    case Miss::host_not_found:
    case Miss::no_recovery:
      break;
  }
  return out;
}

// Where there are IPv6 addresses AI_V4MAPPED without AI_ALL wants no mapped one, not even one that
// stands there as such.
void drop_mapped(Found& found) {
  std::erase_if(found.addresses, [](const IpAddress& address) {
    return address.family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&address.bytes);
  });
}

Said ask_files(const NameLookup& lookup, const Config& config, Counters& counters) {
  Said out;
  const auto find = [&](int family) {
    auto found = config.hosts.find(lookup.name, family, config.multi);
    if (found.addresses.empty()) return false;
    out.found = {std::move(found.addresses), std::move(found.canonical)};
    return true;
  };
  bool any = find(lookup.family);
  const bool has_ipv6 = any && lookup.family == AF_INET6;
  if (lookup.family == AF_INET6 && (lookup.flags & AI_V4MAPPED) &&
      (!any || (lookup.flags & AI_ALL))) {
    Found ipv6 = std::move(out.found);
    out.found = {};
    if (find(AF_INET)) {
      for (IpAddress& address : out.found.addresses)
        address = mapped(address);
      if (any) {
        ipv6.addresses.insert(ipv6.addresses.end(), out.found.addresses.begin(),
                              out.found.addresses.end());
        out.found = std::move(ipv6);
      }
      any = true;
    } else {
      out.found = std::move(ipv6);
    }
  }
  if (any && has_ipv6 && (lookup.flags & (AI_V4MAPPED | AI_ALL)) == AI_V4MAPPED)
    drop_mapped(out.found);
  if (!any) return out;
  counters.from_files.add();
  out.status = Status::success;
  return out;
}

Result<Said> ask_dns(Resolver::Impl& impl, const NameLookup& lookup, const Config& config,
                     Deadline deadline) {
  constexpr RecordType both[] = {RecordType::a, RecordType::aaaa};
  constexpr RecordType ipv4[] = {RecordType::a};
  constexpr RecordType ipv6[] = {RecordType::aaaa};
  EarlyReplies early;
  if (lookup.early) {
    early.delay = lookup.early->delay;
    early.tell = [&](std::span<const Reply> replies) {
      Found found;
      for (const Reply& reply : replies)
        take_addresses(reply, found, found.canonical.empty());
      if (!found.addresses.empty()) lookup.early->tell(std::move(found));
    };
  }
  const auto ask = [&](std::span<const RecordType> types) -> Result<Said> {
    RUNLOOM_TRY(const SearchResult result,
                search(impl, lookup.name, types, config, deadline,
                       lookup.early && types.size() > 1 ? &early : nullptr));
    return said(result, types.size(), lookup.flags);
  };
  if (lookup.family == AF_INET || (lookup.family == AF_UNSPEC && config.resolv.no_aaaa))
    return ask(ipv4);
  if (lookup.family == AF_UNSPEC) return ask(both);
  Said out;
  if (config.resolv.no_aaaa) {
    out.no_data = true;
  } else {
    RUNLOOM_TRY(out, ask(ipv6));
  }
  const bool any = out.status == Status::success;
  if (any && (lookup.flags & (AI_V4MAPPED | AI_ALL)) == AI_V4MAPPED) drop_mapped(out.found);
  if (!(lookup.flags & AI_V4MAPPED) || (any && !(lookup.flags & AI_ALL))) return out;
  RUNLOOM_TRY(Said more, ask(ipv4));
  for (IpAddress& address : more.found.addresses)
    address = mapped(address);
  if (!any) {
    if (more.status == Status::success) return more;
    // The name is known when both say so, and another try may help when both say that.
    const bool known = (more.no_data || more.again) && (out.no_data || out.again);
    if (!out.again) more.again = {};
    more.no_data = known && !more.again;
    return more;
  }
  out.found.addresses.insert(out.found.addresses.end(), more.found.addresses.begin(),
                             more.found.addresses.end());
  return out;
}

}  // namespace

IpAddress mapped(const IpAddress& ipv4) noexcept {
  in6_addr ip{};
  ip.s6_addr[10] = ip.s6_addr[11] = 0xff;
  std::memcpy(ip.s6_addr + 12, &ipv4.bytes, 4);
  return IpAddress::ipv6(ip);
}

Result<Found> lookup_name(Resolver::Impl& impl, const NameLookup& lookup, const Config& config,
                          Deadline deadline) {
  // The last source's word counts, whatever those before it said, but for the hosts file, which
  // knows nothing about names that it doesn't have.
  Said last;
  for (const Source& source : config.sources) {
    if (source.kind == Source::Kind::other) continue;
    if (source.kind == Source::Kind::files) {
      last = ask_files(lookup, config, impl.state().counters);
    } else {
      RUNLOOM_TRY(last, ask_dns(impl, lookup, config, deadline));
    }
    if (!last.found.addresses.empty()) break;
    if (source.ends_with(last.status)) break;
  }
  if (!last.found.addresses.empty()) {
    if (last.found.canonical.empty()) last.found.canonical = lookup.name;
    return std::move(last.found);
  }
  if (last.again) return fail(last.again);
  return fail(last.no_data ? DnsErrc::no_data : DnsErrc::not_found);
}

// ---------------------------------------------------------------- addresses to names

namespace {

// Whether a name may be a host's, as glibc asks of what PTR records say.
bool is_host_name(std::string_view name) noexcept {
  bool begins = true;
  for (const char c : name) {
    const bool letter =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!letter && c != '-' && c != '.') return false;
    if (begins && c == '-') return false;
    begins = c == '.';
  }
  return !name.empty();
}

std::string pointer_of(const Answer& answer) {
  std::string_view name = answer.name;
  for (int i = 0; i < kMostAliases; ++i) {
    for (const Record& record : answer.answers)
      if (record.type == RecordType::ptr && same_name(record.name, name)) {
        const std::string& target = std::get<NameData>(record.data).name;
        return is_host_name(target) ? target : std::string();
      }
    const auto alias =
        std::find_if(answer.answers.begin(), answer.answers.end(), [&](const Record& record) {
          return record.type == RecordType::cname && same_name(record.name, name);
        });
    if (alias == answer.answers.end()) break;
    name = std::get<NameData>(alias->data).name;
  }
  return {};
}

}  // namespace

std::string reverse_name(const IpAddress& address) {
  const std::uint8_t* bytes = address.bytes.s6_addr;
  std::string out;
  if (address.family == AF_INET) {
    for (int i = 3; i >= 0; --i)
      out += std::to_string(bytes[i]) + '.';
    return out + "in-addr.arpa";
  }
  static constexpr char digits[] = "0123456789abcdef";
  for (int i = 15; i >= 0; --i)
    for (const int digit : {bytes[i] & 15, bytes[i] >> 4})
      out.append({digits[digit], '.'});
  return out + "ip6.arpa";
}

Result<std::string> lookup_address(Resolver::Impl& impl, const IpAddress& address,
                                   const Config& config, Deadline deadline) {
  std::error_code last = DnsErrc::not_found;
  for (const Source& source : config.sources) {
    Status status = Status::not_found;
    if (source.kind == Source::Kind::other) continue;
    if (source.kind == Source::Kind::files) {
      last = DnsErrc::not_found;
      if (const auto name = config.hosts.find(address); !name.empty()) {
        impl.state().counters.from_files.add();
        return std::string(name);
      }
    } else {
      constexpr RecordType types[] = {RecordType::ptr};
      Reply reply;
      const auto asked =
          impl.ask(reverse_name(address), types, std::span(&reply, 1), config, deadline);
      if (!asked) return Unexpected{asked.error()};
      if (reply.has_records())
        if (auto name = pointer_of(*reply.answer); !name.empty()) return name;
      last = reply.answer ? make_error_code(DnsErrc::not_found) : reply.error;
      if (!reply.answer) status = Status::unavailable;
    }
    if (source.ends_with(status)) break;
  }
  return fail(last);
}

}  // namespace runloom::dns
