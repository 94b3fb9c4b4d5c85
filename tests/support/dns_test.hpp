// What the tests of names share: a directory with the files that a resolver reads, and a resolver
// that reads those and asks a server of the test's.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "dns/local_addresses.hpp"
#include "runloom/dns/resolver.hpp"
#include "support/dns_server.hpp"
#include "support/files.hpp"
#include "support/net_test.hpp"

namespace runloom::test {

// The process keeps a socket on which the kernel tells of new addresses; tests count descriptors.
inline const auto kAddressesKept = dns::local_addresses();

class DnsFiles {
 public:
  // As on a fresh Debian, but for resolv.conf, which is empty.
  DnsFiles() {
    write("resolv.conf", "");
    write("hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    write("services",
          "ftp 21/tcp\nssh 22/tcp\ndomain 53/tcp\ndomain 53/udp\nhttp 80/tcp www # web\n"
          "ntp 123/udp\nhttps 443/tcp\nhttps 443/udp\n");
    write("nsswitch.conf", "hosts: files dns\n");
    write("host.conf", "multi on\n");
    write("gai.conf", "");
  }
  // Replaces it by renaming, as programs do.
  void write(std::string_view name, std::string_view text) {
    make_file(directory_ / (std::string(name) + ".new"), text);
    std::filesystem::rename(directory_ / (std::string(name) + ".new"), directory_ / name);
  }
  void overwrite(std::string_view name, std::string_view text) {
    make_file(directory_ / name, text);
  }
  std::string path(std::string_view name) const { return directory_ / name; }

  dns::ResolverOptions options(std::vector<net::Address> servers = {}) const {
    dns::ResolverOptions out;
    out.resolv_conf = path("resolv.conf");
    out.hosts = path("hosts");
    out.services = path("services");
    out.nsswitch = path("nsswitch.conf");
    out.host_conf = path("host.conf");
    out.gai_conf = path("gai.conf");
    out.servers = std::move(servers);
    out.timeout = std::chrono::milliseconds(300);
    return out;
  }

 private:
  TempDirectory directory_;
};

// The addresses of a host as text, or why there are none.
inline std::vector<std::string> addresses_of(dns::Resolver& resolver, std::string_view host,
                                             const dns::Hints& hints = {.socktype = SOCK_STREAM},
                                             Deadline deadline = {}) {
  const auto found = resolver.getaddrinfo(host, std::nullopt, hints, deadline);
  if (!found) return {found.error().message()};
  std::vector<std::string> out;
  for (const auto& info : *found)
    out.push_back(info.address.ip());
  return out;
}

using Texts = std::vector<std::string>;

}  // namespace runloom::test
