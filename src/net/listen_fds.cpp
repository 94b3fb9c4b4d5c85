#include "runloom/net/listen_fds.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace runloom::net {
namespace {

constexpr int kFirst = 3;  // SD_LISTEN_FDS_START

bool to_number(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

int option_of(int fd, int name) noexcept {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : 0;
}

// Colons end a name; they can't be part of one.
std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> result;
  for (;;) {
    const std::size_t colon = names.find(':');
    result.emplace_back(names.substr(0, colon));
    if (colon == std::string_view::npos) return result;
    names.remove_prefix(colon + 1);
  }
}

Result<int> count_of() {
  const char* const pid = std::getenv("LISTEN_PID");
  const char* const fds = std::getenv("LISTEN_FDS");
  if (!pid || !fds) return 0;
  int process = 0, count = 0;
  if (!to_number(pid, process) || process <= 0) return fail_errno(EINVAL);
  if (process != ::getpid()) return 0;
  if (!to_number(fds, count) || count < 0) return fail_errno(EINVAL);
  // All or nothing; what isn't open may be somebody else's a moment later.
  for (int i = 0; i < count; ++i)
    if (::fcntl(kFirst + i, F_GETFD) < 0) return fail_errno(EINVAL);
  return count;
}

}  // namespace

Result<std::vector<ListenFd>> listen_fds(bool unset) {
  const auto count = count_of();
  std::vector<std::string> names;
  if (const char* const text = std::getenv("LISTEN_FDNAMES")) names = split(text);
  if (unset)
    for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"})
      ::unsetenv(name);
  if (!count) return Unexpected{count.error()};

  std::vector<ListenFd> result(static_cast<std::size_t>(*count));
  for (std::size_t i = 0; i < result.size(); ++i) {
    ListenFd& each = result[i];
    const int fd = kFirst + static_cast<int>(i);
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    each.fd.reset(fd);
    each.name = i < names.size() ? std::move(names[i]) : "unknown";
    each.family = option_of(fd, SO_DOMAIN);
    each.type = option_of(fd, SO_TYPE);
    each.listening = option_of(fd, SO_ACCEPTCONN) != 0;
  }
  return result;
}

}  // namespace runloom::net
