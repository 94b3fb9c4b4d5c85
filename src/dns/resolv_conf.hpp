// resolv.conf(5), read as glibc 2.36 reads it.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "runloom/net/address.hpp"

namespace runloom::dns {

struct ResolvConf {
  std::vector<net::Address> servers;  // at most three; never empty after finish()
  std::vector<std::string> search;
  int ndots = 1;
  std::chrono::seconds timeout{5};
  int attempts = 2;
  bool rotate = false;
  bool use_tcp = false;   // use-vc
  bool edns = false;      // edns0
  bool trust_ad = false;  // trust-ad
  bool no_aaaa = false;   // no-aaaa
  bool no_tld_query = false;
  bool single_request = false;  // A and AAAA one after the other

  // Words as behind `options`.
  void apply_options(std::string_view words);
  // What stands in no file: the environment's RES_OPTIONS and LOCALDOMAIN (null: not set), the
  // domain of `host_name`, and the server on this machine where none is named.
  void finish(const char* res_options, const char* local_domain, std::string_view host_name);
};

// Any text at all gives something: what isn't understood is passed over.
ResolvConf parse_resolv_conf(std::string_view text);

}  // namespace runloom::dns
