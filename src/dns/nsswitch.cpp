#include "nsswitch.hpp"

#include <optional>

#include "message.hpp"
#include "text.hpp"

namespace runloom::dns {
namespace {

Source make_source(std::string_view name) {
  Source source;
  source.name = name;
  if (name == "files") source.kind = Source::Kind::files;
  if (name == "dns") source.kind = Source::Kind::dns;
  return source;
}

std::optional<Status> parse_status(std::string_view text) {
  if (same_name(text, "success")) return Status::success;
  if (same_name(text, "notfound")) return Status::not_found;
  if (same_name(text, "unavail")) return Status::unavailable;
  if (same_name(text, "tryagain")) return Status::try_again;
  return std::nullopt;
}

// "[NOTFOUND=return !UNAVAIL=continue]", without the brackets.
void apply_actions(Source& source, std::string_view text) {
  for (auto word = next_word(text); !word.empty(); word = next_word(text)) {
    const bool negated = word.starts_with('!');
    if (negated) word.remove_prefix(1);
    const std::size_t equal = word.find('=');
    if (equal == std::string_view::npos) continue;
    const auto status = parse_status(word.substr(0, equal));
    const std::string_view action = word.substr(equal + 1);
    const bool ends = same_name(action, "return");
    if (!status || (!ends && !same_name(action, "continue"))) continue;
    for (unsigned i = 0; i < source.ends.size(); ++i)
      if ((i == static_cast<unsigned>(*status)) != negated) source.ends[i] = ends;
  }
}

std::vector<Source> parse_sources(std::string_view text) {
  std::vector<Source> sources;
  while (!text.empty()) {
    if (is_space(text.front())) {
      text.remove_prefix(1);
      continue;
    }
    if (text.front() == '[') {
      const std::size_t end = text.find(']');
      if (!sources.empty()) apply_actions(sources.back(), text.substr(1, end - 1));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      continue;
    }
    std::size_t end = 0;
    while (end < text.size() && !is_space(text[end]) && text[end] != '[')
      ++end;
    sources.push_back(make_source(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return sources;
}

}  // namespace

std::vector<Source> parse_nsswitch(std::string_view text) {
  std::string_view line;
  while (next_line(text, line)) {
    line = without_comment(line);
    while (!line.empty() && is_space(line.front()))
      line.remove_prefix(1);
    constexpr std::string_view kHosts = "hosts";
    if (!line.starts_with(kHosts)) continue;
    line.remove_prefix(kHosts.size());
    while (!line.empty() && is_space(line.front()))
      line.remove_prefix(1);
    if (!line.starts_with(':')) continue;
    if (auto sources = parse_sources(line.substr(1)); !sources.empty()) return sources;
  }
  return parse_sources("files dns");
}

bool parse_host_conf_multi(std::string_view text) {
  bool multi = false;
  std::string_view line;
  while (next_line(text, line)) {
    line = without_comment(line);
    if (!same_name(next_word(line), "multi")) continue;
    const std::string_view value = next_word(line);
    if (same_name(value, "on")) multi = true;
    if (same_name(value, "off")) multi = false;
  }
  return multi;
}

}  // namespace runloom::dns
