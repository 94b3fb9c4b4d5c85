// What a resolver is made with, what getaddrinfo takes and gives, and what a resolver counts.
#pragma once

#include <netdb.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runloom/net/address.hpp"

namespace runloom::dns {

struct ResolverOptions {
  // The files that say how names are resolved. They are read on the blocking pool when the first
  // name is looked up, and again within a second after one of them changed.
  std::string resolv_conf = "/etc/resolv.conf";
  std::string hosts = "/etc/hosts";
  std::string services = "/etc/services";
  std::string nsswitch = "/etc/nsswitch.conf";
  std::string host_conf = "/etc/host.conf";
  std::string gai_conf = "/etc/gai.conf";

  // Where not empty, instead of what nsswitch.conf says: "files", "dns", in order.
  std::vector<std::string> sources{};
  // Where not empty or zero, instead of what resolv.conf says.
  std::vector<net::Address> servers{};   // asked in this order
  std::chrono::milliseconds timeout{0};  // for an answer, in the first round over the servers
  int attempts = 0;                      // rounds

  // Answers, and that a name does not exist, are kept as long as their TTL says and `cache_ttl`
  // allows. 0 entries: no cache, as glibc.
  std::size_t cache_entries = 0;
  std::chrono::seconds cache_ttl{3600};

  // How long a server that didn't answer is asked last.
  std::chrono::seconds dead_server{30};

  // Leaves everything to glibc's getaddrinfo on the blocking pool, with whatever nsswitch.conf
  // names; the options above don't count then. Also chosen by RUNLOOM_DNS=system, for all
  // resolvers.
  bool system = false;
};

// As of getaddrinfo(3); the flags are AI_ of <netdb.h>. These defaults are those of an all-zero
// struct; glibc's getaddrinfo takes {AI_V4MAPPED | AI_ADDRCONFIG} for a null pointer.
struct Hints {
  int flags = 0;
  int family = AF_UNSPEC;
  int socktype = 0;
  int protocol = 0;
};

struct AddressInfo {
  int family = AF_UNSPEC;
  int socktype = 0;
  int protocol = 0;
  net::Address address;
  std::string canonical_name;  // in the first one, with AI_CANONNAME
};

struct NameInfo {
  std::string host;
  std::string service;
};

// Counters since the resolver was made; each is exact, all together are no snapshot.
struct ResolverStats {
  std::uint64_t lookups = 0;     // calls of getaddrinfo, getnameinfo, query, exchange
  std::uint64_t numeric = 0;     // answered without looking at anything
  std::uint64_t from_files = 0;  // answered by the hosts file
  std::uint64_t from_cache = 0;  // questions that the cache answered
  std::uint64_t queries = 0;     // questions given to the servers
  std::uint64_t coalesced = 0;   // questions that waited for an equal one in flight
  std::uint64_t timeouts = 0;    // tries that ended without an answer
  std::uint64_t tcp_connections = 0;
  std::uint64_t dropped = 0;               // datagrams that answered no question of ours
  std::uint64_t failed = 0;                // lookups that failed
  std::uint64_t in_flight = 0;             // questions now
  std::uint64_t cached = 0;                // entries now
  std::uint64_t reloads = 0;               // times that the files were read
  std::uint64_t system_calls = 0;          // lookups left to glibc
  std::vector<net::Address> servers;       // in the order in which they are asked now
  std::vector<net::Address> dead_servers;  // of them, those that did not answer lately
  // Sources that nsswitch.conf names for hosts and that are left out, such as "mdns4_minimal".
  std::vector<std::string> ignored_sources;
};

}  // namespace runloom::dns
