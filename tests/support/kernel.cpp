#include "support/kernel.hpp"

#include <dirent.h>
#include <sys/mman.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace runloom::test {
namespace {

// The number behind "name:" in kB.
std::uint64_t kilobytes(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line))
    if (line.rfind(name + ":", 0) == 0) return std::stoull(line.substr(name.size() + 1)) * 1024;
  return 0;
}

}  // namespace

bool kernel_has_guard_install() {
  constexpr int kGuardInstall = 102;
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool has = ::madvise(page, 4096, kGuardInstall) == 0;
  ::munmap(page, 4096);
  return has;
}

std::uint64_t max_map_count() {
  std::uint64_t count = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> count;
  return count;
}

std::uint64_t status_bytes(const char* field) {
  return kilobytes("/proc/self/status", field);
}

std::uint64_t available_memory() {
  return kilobytes("/proc/meminfo", "MemAvailable");
}

std::uint64_t cpu_ticks() {
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // The name in parentheses may contain anything; utime and stime are fields 14 and 15.
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int field = 3; field < 14; ++field)
    fields >> skipped;
  std::uint64_t user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

int threads_named(const char* name) {
  DIR* dir = ::opendir("/proc/self/task");
  if (!dir) return -1;
  int count = 0;
  while (const dirent* entry = ::readdir(dir)) {
    std::string comm;
    std::ifstream(std::string("/proc/self/task/") + entry->d_name + "/comm") >> comm;
    count += comm == name;
  }
  ::closedir(dir);
  return count;
}

}  // namespace runloom::test
