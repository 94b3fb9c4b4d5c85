#include "config.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "runloom/net/owned_fd.hpp"

namespace runloom::dns {
namespace {

constexpr std::size_t kMostFile = 64 * 1024 * 1024;  // a list of blocked names may be long

std::string read_file(const std::string& path) {
  std::string text;
  // A FIFO or a device can't make us wait, nor never end.
  const net::OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status;
  if (!fd || ::fstat(fd.number(), &status) != 0 || !S_ISREG(status.st_mode)) return text;
  for (;;) {
    const std::size_t had = text.size();
    if (had >= kMostFile) return text;
    text.resize(had + 16 * 1024);
    const ssize_t size = ::read(fd.number(), text.data() + had, text.size() - had);
    text.resize(had + static_cast<std::size_t>(size > 0 ? size : 0));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
  }
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

std::shared_ptr<Config> load_config(const ResolverOptions& options) {
  auto config = std::make_shared<Config>();
  config->resolv = parse_resolv_conf(read_file(options.resolv_conf));
  config->resolv.finish(std::getenv("RES_OPTIONS"), std::getenv("LOCALDOMAIN"), host_name());
  if (!options.servers.empty()) config->resolv.servers = options.servers;
  if (options.attempts > 0) config->resolv.attempts = options.attempts;
  config->hosts = HostsFile::parse(read_file(options.hosts));
  config->services = Services::parse(read_file(options.services));
  config->sources = parse_nsswitch(read_file(options.nsswitch));
  if (!options.sources.empty()) {
    std::string line = "hosts:";
    for (const std::string& source : options.sources)
      line += ' ' + source;
    config->sources = parse_nsswitch(line);
  }
  config->multi = parse_host_conf_multi(read_file(options.host_conf));
  config->gai = parse_gai_conf(read_file(options.gai_conf));
  return config;
}

std::vector<std::string> config_paths(const ResolverOptions& options) {
  return {options.resolv_conf, options.hosts,     options.services,
          options.nsswitch,    options.host_conf, options.gai_conf};
}

std::string config_stamp(const ResolverOptions& options) {
  std::string stamp;
  for (const std::string& path : config_paths(options)) {
    struct stat status {};
    ::stat(path.c_str(), &status);
    for (const auto number :
         {static_cast<long long>(status.st_ino), static_cast<long long>(status.st_size),
          static_cast<long long>(status.st_mtim.tv_sec),
          static_cast<long long>(status.st_mtim.tv_nsec)})
      stamp += std::to_string(number) + ' ';
  }
  return stamp;
}

}  // namespace runloom::dns
