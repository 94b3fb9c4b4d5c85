// resolv.conf: any text gives servers, a search list and numbers within their bounds. What stands
// before the first zero byte is the file, what follows the environment's options.
#include <cstdint>
#include <string>

#include "dns/message.hpp"
#include "dns/numeric.hpp"
#include "dns/resolv_conf.hpp"
#include "runloom/sched/check.hpp"

using namespace runloom;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  const std::string options =
      all.find('\0') == std::string::npos ? "" : all.substr(all.find('\0') + 1);
  auto conf = dns::parse_resolv_conf(all.substr(0, all.find('\0')));
  conf.finish(options.c_str(), nullptr, "host.test");
  RUNLOOM_CHECK(!conf.servers.empty() && conf.servers.size() <= 3, "one to three servers");
  for (const auto& server : conf.servers)
    RUNLOOM_CHECK(server.is_ip() && server.port() == 53, "a server has an address");
  RUNLOOM_CHECK(conf.ndots >= 0 && conf.ndots <= 15, "ndots");
  RUNLOOM_CHECK(conf.attempts >= 1 && conf.attempts <= 5, "attempts");
  RUNLOOM_CHECK(conf.timeout.count() >= 1 && conf.timeout.count() <= 30, "timeout");
  for (const auto& domain : conf.search) {
    RUNLOOM_CHECK(!domain.empty(), "a domain has a name");
    (void)dns::encode_name("host." + domain);
  }
  (void)dns::parse_ipv4_legacy(all);
  return 0;
}
