// The order of addresses, RFC 3484 as glibc 2.36 has it (with RFC 6724's rules where those agree).
#pragma once

#include <vector>

#include "gai_conf.hpp"
#include "hosts_file.hpp"
#include "local_addresses.hpp"

namespace runloom::dns {

// What sorting wants to know of one destination.
struct Destination {
  IpAddress address;
  bool reachable = false;  // the kernel has a route, and gave `source`
  in6_addr source{};       // an IPv4 address mapped
  LocalAddress local{};    // what is known of the source
};

// The source address that the kernel would take: what is known since the last change of a route, or
// asked by connecting a UDP socket, which sends nothing. No parking.
void find_sources(std::vector<Destination>& destinations, const LocalAddresses& local);
// Whether a goes before b: below zero, behind it: above; zero: the order stays.
int compare(const Destination& a, const Destination& b, const GaiConf& conf) noexcept;
// Both, for all.
void sort_addresses(std::vector<IpAddress>& addresses, const GaiConf& conf);

}  // namespace runloom::dns
