// Uses the DNS layer as an outside project does: a numeric address, and a name that can't be one.
#include <cstdio>
#include <runloom/dns/dial.hpp>
#include <runloom/dns/resolver.hpp>

int main() {
  namespace dns = runloom::dns;
  dns::Resolver resolver;
  const auto found = resolver.getaddrinfo("127.1", "80", {.socktype = SOCK_STREAM});
  if (!found || found->size() != 1 || (*found)[0].address.to_string() != "127.0.0.1:80") {
    std::fprintf(stderr, "127.1 was not understood\n");
    return 1;
  }
  const auto refused = resolver.getaddrinfo("name", "80", {.flags = AI_NUMERICHOST});
  const auto parts = dns::split_target("[::1]:https");
  return refused.error() == dns::DnsErrc::not_found && parts && parts->host == "::1" ? 0 : 1;
}
