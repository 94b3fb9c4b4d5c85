// Looks names up, as dig and getent do.
//
//     build/release/examples/example_lookup example.org             # as programs see it
//     build/release/examples/example_lookup example.org MX TXT      # records, all at the same time
//     build/release/examples/example_lookup --server 127.0.0.1:5353 example.org HTTPS
//     build/release/examples/example_lookup 192.0.2.1               # the name of an address
//
// Without a type the hosts file and the search list count, and the addresses come in the order in
// which a program should try them. With types the servers alone are asked, for the name as it is.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "runloom/dns/resolver.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/scheduler.hpp"

using namespace runloom;
using namespace std::chrono_literals;

static bool print_records(dns::Resolver& resolver, const std::string& name, dns::RecordType type) {
  const auto answer = resolver.query(name, type, Deadline::after(10s));
  if (!answer) {
    std::fprintf(stderr, "%s\n",
                 dns::explain(answer.error(), name + ' ' + dns::to_string(type)).c_str());
    return false;
  }
  std::string text;
  for (const dns::Record& record : (*answer)->answers)
    text += dns::to_string(record) + '\n';
  std::fputs(text.c_str(), stdout);
  return true;
}

static bool print_addresses(dns::Resolver& resolver, const std::string& name) {
  const auto found = resolver.getaddrinfo(
      name, std::nullopt, {.flags = AI_CANONNAME, .socktype = SOCK_STREAM}, Deadline::after(10s));
  if (!found) {
    std::fprintf(stderr, "%s\n", dns::explain(found.error(), name).c_str());
    return false;
  }
  const std::string& canonical = found->front().canonical_name;
  if (canonical != name) std::printf("# %s is %s\n", name.c_str(), canonical.c_str());
  for (const dns::AddressInfo& info : *found)
    std::printf("%s\n", info.address.ip().c_str());
  return true;
}

static bool print_name(dns::Resolver& resolver, const net::Address& address) {
  const auto info = resolver.getnameinfo(address, NI_NAMEREQD, Deadline::after(10s));
  if (!info) {
    std::fprintf(stderr, "%s\n", dns::explain(info.error(), address.ip()).c_str());
    return false;
  }
  std::printf("%s\n", info->host.c_str());
  return true;
}

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  dns::ResolverOptions options;
  std::string problem;
  while (arguments.size() >= 2 && arguments[0] == "--server") {
    const auto server = net::Address::parse(arguments[1], &problem);
    if (!server) {
      std::fprintf(stderr, "%s\n", problem.c_str());
      return 2;
    }
    options.servers.push_back(*server);
    arguments.erase(arguments.begin(), arguments.begin() + 2);
  }
  std::vector<dns::RecordType> types;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const auto type = dns::parse_record_type(arguments[i]);
    if (!type) {
      std::fprintf(stderr, "%s is no type of records\n", arguments[i].c_str());
      return 2;
    }
    types.push_back(*type);
  }
  if (arguments.empty()) {
    std::fprintf(stderr, "usage: example_lookup [--server ADDRESS:PORT]... NAME [TYPE]...\n");
    return 2;
  }

  dns::Resolver resolver(std::move(options));
  const std::string name = arguments[0];
  bool found = true;
  const auto done = runloom::run([&]() -> Result<void> {
    if (const auto address = net::Address::from_ip(name, 0); address && types.empty()) {
      found = print_name(resolver, *address);
    } else if (types.empty()) {
      found = print_addresses(resolver, name);
    }
    JoinSet<> set;
    for (const dns::RecordType type : types) {
      auto asked = set.spawn([&, type] { found = print_records(resolver, name, type) && found; },
                             {.hub = 0});
      if (!asked) return asked;
    }
    return set.wait();
  });
  return done && found ? 0 : 1;
}
