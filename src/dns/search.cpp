#include "search.hpp"

#include <algorithm>

#include "runloom/dns/error.hpp"

namespace runloom::dns {
namespace {

constexpr std::size_t kMostText = 1025;  // NS_MAXDNAME

// What one name's replies say together. An answer with records wins; then what is known for
// certain.
struct Verdict {
  Miss miss = Miss::none;
  bool server_failure = false;  // of try_again: a server said so
  bool unreachable = false;     // of try_again: there was no server at all
  std::error_code why{};
};

Verdict judge(std::span<const Reply> replies) {
  Verdict verdict;
  if (std::any_of(replies.begin(), replies.end(), [](const Reply& r) { return r.has_records(); }))
    return verdict;
  bool any = false;
  for (const Reply& reply : replies) {
    if (!reply.answer) continue;
    const int rcode = reply.answer->rcode;
    const Miss miss = rcode == 0   ? Miss::no_data
                      : rcode == 3 ? Miss::host_not_found
                                   : Miss::no_recovery;
    // The first one that is not merely empty.
    if (!any || verdict.miss == Miss::no_data) verdict.miss = miss;
    any = true;
  }
  if (any) return verdict;
  for (const Reply& reply : replies) {
    if (!reply.error || verdict.why) continue;
    verdict.why = reply.error;
    verdict.miss = reply.error == DnsErrc::malformed_name ? Miss::no_recovery : Miss::try_again;
    verdict.server_failure = reply.error == DnsErrc::server_failure;
    verdict.unreachable = reply.error == DnsErrc::unreachable;
  }
  return verdict;
}

class Search {
 public:
  Search(Resolver::Impl& impl, std::span<const RecordType> types, const Config& config,
         Deadline deadline, const EarlyReplies* early) noexcept
      : impl_(impl), types_(types), config_(config), deadline_(deadline), early_(early) {}

  Result<SearchResult> run(std::string_view name);

 private:
  Result<Verdict> query(const std::string& name);
  Result<Verdict> query_in(std::string_view name, std::string_view domain);
  SearchResult found() { return {Miss::none, false, {}, std::move(replies_)}; }

  Resolver::Impl& impl_;
  const std::span<const RecordType> types_;
  const Config& config_;
  const Deadline deadline_;
  const EarlyReplies* const early_;
  std::array<Reply, 2> replies_;
};

Result<Verdict> Search::query(const std::string& name) {
  replies_ = {};
  if (name.size() >= kMostText) return Verdict{.miss = Miss::no_recovery};
  const std::span<Reply> replies = std::span(replies_).first(types_.size());
  // "single-request": some servers lose the second of two questions at a time.
  const std::size_t at_once = config_.resolv.single_request ? 1 : types_.size();
  for (std::size_t i = 0; i < types_.size(); i += at_once) {
    const auto asked = impl_.ask(name, types_.subspan(i, at_once), replies.subspan(i, at_once),
                                 config_, deadline_, early_);
    if (!asked) return Unexpected{asked.error()};
  }
  return judge(replies);
}

Result<Verdict> Search::query_in(std::string_view name, std::string_view domain) {
  std::string whole(name);
  if (!domain.empty()) whole.append(".").append(domain);
  return query(whole);
}

Result<SearchResult> Search::run(std::string_view name) {
  const ResolvConf& conf = config_.resolv;
  const auto dots = std::count(name.begin(), name.end(), '.');
  const bool trailing_dot = name.ends_with('.');
  Verdict last{.miss = Miss::host_not_found};
  Verdict as_is;
  bool tried_as_is = false;
  bool root_on_list = false;
  bool searched = false;
  bool got_no_data = false;
  std::error_code got_server_failure;

  if (dots >= conf.ndots || trailing_dot) {
    RUNLOOM_TRY(last, query(std::string(name)));
    if (last.miss == Miss::none) return found();
    as_is = last;
    tried_as_is = true;
    if (trailing_dot)
      return SearchResult{last.miss, !last.server_failure, last.why, std::move(replies_)};
  }
  for (std::size_t i = 0; !trailing_dot && i < conf.search.size(); ++i) {
    std::string_view domain = conf.search[i];
    searched = true;
    if (domain.starts_with('.')) domain.remove_prefix(1);
    if (domain.empty()) root_on_list = true;
    RUNLOOM_TRY(last, query_in(name, domain));
    if (last.miss == Miss::none) return found();
    if (last.unreachable) return SearchResult{Miss::try_again, true, last.why, {}};
    if (last.miss == Miss::no_data) got_no_data = true;
    if (last.miss == Miss::try_again && last.server_failure) {
      got_server_failure = last.why;
    } else if (last.miss == Miss::try_again || last.miss == Miss::no_recovery) {
      break;
    }
  }
  if ((dots > 0 || !searched || !conf.no_tld_query) && !tried_as_is && !root_on_list) {
    RUNLOOM_TRY(last, query(std::string(name)));
    if (last.miss == Miss::none) return found();
  }
  if (tried_as_is) {
    last = as_is;
  } else if (got_no_data) {
    last = {.miss = Miss::no_data};
  } else if (got_server_failure) {
    last = {.miss = Miss::try_again, .server_failure = true, .why = got_server_failure};
  }
  return SearchResult{last.miss, !last.server_failure, last.why, {}};
}

}  // namespace

Result<SearchResult> search(Resolver::Impl& impl, std::string_view name,
                            std::span<const RecordType> types, const Config& config,
                            Deadline deadline, const EarlyReplies* early) {
  return Search(impl, types, config, deadline, early).run(name);
}

}  // namespace runloom::dns
