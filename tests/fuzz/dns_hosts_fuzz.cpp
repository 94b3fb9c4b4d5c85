// hosts, services, nsswitch.conf, host.conf and gai.conf: any text gives something that can be
// used.
#include <cstdint>
#include <string_view>

#include "dns/gai_conf.hpp"
#include "dns/hosts_file.hpp"
#include "dns/nsswitch.hpp"
#include "dns/services.hpp"
#include "dns/text.hpp"
#include "runloom/sched/check.hpp"

using namespace runloom;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto hosts = dns::HostsFile::parse(text);
  std::string_view rest = text, line;
  while (dns::next_line(rest, line)) {
    for (auto word = dns::next_word(line); !word.empty(); word = dns::next_word(line)) {
      const auto all = hosts.find(word, AF_UNSPEC, true);
      const auto first = hosts.find(word, AF_UNSPEC, false);
      RUNLOOM_CHECK(all.addresses.empty() == first.addresses.empty() && first.addresses.size() <= 1,
                    "the first of all addresses is the only one without `multi`");
      RUNLOOM_CHECK(all.addresses.size() <= hosts.size(), "an address has a line");
      if (all.addresses.empty()) continue;
      RUNLOOM_CHECK(all.addresses[0] == first.addresses[0], "in the order of the file");
      RUNLOOM_CHECK(!hosts.find(all.addresses[0]).empty(), "an address that is there has a name");
      (void)hosts.find(word, AF_INET, true);
      (void)hosts.find(word, AF_INET6, true);
    }
  }
  const auto services = dns::Services::parse(text);
  (void)services.port(text.substr(0, 10), "tcp");
  RUNLOOM_CHECK(!dns::parse_nsswitch(text).empty(), "there is always a source");
  (void)dns::parse_host_conf_multi(text);
  const auto gai = dns::parse_gai_conf(text);
  for (const auto* table : {&gai.labels, &gai.precedences})
    RUNLOOM_CHECK(table->back().bits == 0, "a table ends with what matches everything");
  (void)gai.label(in6addr_loopback);
  (void)gai.ipv4_scope({});
  return 0;
}
