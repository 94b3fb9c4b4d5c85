// Config: what the files say, read once and shared until one of them changes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gai_conf.hpp"
#include "hosts_file.hpp"
#include "nsswitch.hpp"
#include "resolv_conf.hpp"
#include "runloom/dns/options.hpp"
#include "services.hpp"

namespace runloom::dns {

struct Config {
  ResolvConf resolv;
  HostsFile hosts;
  Services services;
  std::vector<Source> sources;
  bool multi = false;
  GaiConf gai;
  unsigned long generation = 0;  // of this resolver, counted from 1
};

// Reads the files: blocks, so not on a hub's thread. A file that can't be read is an empty one.
std::shared_ptr<Config> load_config(const ResolverOptions& options);
std::vector<std::string> config_paths(const ResolverOptions& options);
// What changes when one of the files does, for where there is no inotify. Blocks.
std::string config_stamp(const ResolverOptions& options);

}  // namespace runloom::dns
