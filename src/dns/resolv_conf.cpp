#include "resolv_conf.hpp"

#include <net/if.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "numeric.hpp"
#include "text.hpp"

namespace runloom::dns {
namespace {

constexpr std::size_t kMostServers = 3;  // MAXNS
constexpr int kMostDots = 15;
constexpr int kMostTimeout = 30;
constexpr int kMostAttempts = 5;
constexpr std::uint16_t kPort = 53;

// A line's keyword is followed by a blank or a tab.
bool take_keyword(std::string_view& line, std::string_view keyword) noexcept {
  if (!line.starts_with(keyword) || line.size() == keyword.size()) return false;
  const char after = line[keyword.size()];
  if (after != ' ' && after != '\t') return false;
  line.remove_prefix(keyword.size());
  return true;
}

// As atoi(3), within bounds.
int number_behind(std::string_view word, std::string_view name, int most) noexcept {
  word.remove_prefix(name.size());
  int value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value);
  return std::clamp(value, 0, most);
}

void add_server(std::vector<net::Address>& servers, std::string_view text) {
  if (servers.size() == kMostServers) return;
  if (const auto ip = parse_ipv4_legacy(text)) {
    servers.push_back(net::Address::from_ipv4(*ip, kPort));
    return;
  }
  const std::size_t percent = text.find('%');
  const auto ip = parse_ipv6(text.substr(0, percent));
  if (!ip) return;
  std::uint32_t scope = 0;
  if (percent != std::string_view::npos)
    scope = parse_scope(*ip, text.substr(percent + 1)).value_or(0);
  servers.push_back(net::Address::from_ipv6(*ip, kPort, scope));
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  for (auto word = next_word(text); !word.empty(); word = next_word(text))
    out.emplace_back(word);
  return out;
}

}  // namespace

void ResolvConf::apply_options(std::string_view words) {
  for (auto word = next_word(words); !word.empty(); word = next_word(words)) {
    if (word.starts_with("ndots:")) {
      ndots = number_behind(word, "ndots:", kMostDots);
    } else if (word.starts_with("timeout:")) {
      timeout = std::chrono::seconds(std::max(1, number_behind(word, "timeout:", kMostTimeout)));
    } else if (word.starts_with("attempts:")) {
      attempts = std::max(1, number_behind(word, "attempts:", kMostAttempts));
    } else if (word == "rotate") {
      rotate = true;
    } else if (word == "use-vc") {
      use_tcp = true;
    } else if (word == "edns0") {
      edns = true;
    } else if (word == "trust-ad") {
      trust_ad = true;
    } else if (word == "no-aaaa") {
      no_aaaa = true;
    } else if (word == "no-tld-query") {
      no_tld_query = true;
    } else if (word == "single-request" || word == "single-request-reopen") {
      single_request = true;
    }
  }
}

void ResolvConf::finish(const char* res_options, const char* local_domain,
                        std::string_view host_name) {
  if (local_domain) {
    search = words_of(local_domain);
  } else if (search.empty()) {
    if (const auto dot = host_name.find('.'); dot != std::string_view::npos)
      if (dot + 1 < host_name.size()) search.emplace_back(host_name.substr(dot + 1));
  }
  if (res_options) apply_options(res_options);
  if (servers.empty()) servers.push_back(net::Address::loopback_ipv4(kPort));
}

ResolvConf parse_resolv_conf(std::string_view text) {
  ResolvConf conf;
  std::string_view line;
  while (next_line(text, line)) {
    // The C library reads lines as C strings.
    line = line.substr(0, line.find('\0'));
    if (line.empty() || line[0] == ';' || line[0] == '#') continue;
    if (take_keyword(line, "nameserver")) {
      add_server(conf.servers, next_word(line));
    } else if (take_keyword(line, "search")) {
      if (auto words = words_of(line); !words.empty()) conf.search = std::move(words);
    } else if (take_keyword(line, "domain")) {
      if (const auto word = next_word(line); !word.empty()) conf.search = {std::string(word)};
    } else if (take_keyword(line, "options")) {
      conf.apply_options(line);
    }
  }
  return conf;
}

}  // namespace runloom::dns
