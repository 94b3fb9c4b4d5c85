#include "runloom/net/systemd_notify.hpp"

#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "runloom/net/unix_socket.hpp"
#include "socket_option.hpp"

namespace runloom::net {
namespace {

template <class T>
Result<T> number_of(const char* text) {
  const std::string_view view = text;
  T value{};
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (view.empty() || error != std::errc() || end != view.data() + view.size())
    return fail_errno(EINVAL);
  return value;
}

Result<Address> address_of(std::string_view name) {
  if (name.starts_with('@')) return Address::from_unix_abstract(name.substr(1));
  if (name.starts_with('/')) return Address::from_unix_path(name);
  return fail_errno(EAFNOSUPPORT);  // vsock
}

Result<std::optional<std::chrono::microseconds>> watchdog_of() {
  const char* const interval = std::getenv("WATCHDOG_USEC");
  if (!interval) return std::optional<std::chrono::microseconds>();
  RUNLOOM_TRY(const auto usec, number_of<std::int64_t>(interval));
  if (usec <= 0) return fail_errno(EINVAL);
  if (const char* const process = std::getenv("WATCHDOG_PID")) {
    RUNLOOM_TRY(const auto pid, number_of<pid_t>(process));
    if (pid != ::getpid()) return std::optional<std::chrono::microseconds>();  // a parent's
  }
  return std::optional(std::chrono::microseconds(usec));
}

}  // namespace

Result<SystemdNotify> SystemdNotify::from_environment(bool unset) {
  const auto read = []() -> Result<SystemdNotify> {
    SystemdNotify out;
    const char* const name = std::getenv("NOTIFY_SOCKET");
    if (!name || !*name) return out;
    RUNLOOM_TRY(out.to_, address_of(name));
    RUNLOOM_TRY(out.watchdog_, watchdog_of());
    RUNLOOM_TRY(out.socket_, open_socket(AF_UNIX, SOCK_DGRAM, 0, FdKind::datagram));
    return out;
  };
  auto out = read();
  if (unset)
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
      ::unsetenv(name);
  return out;
}

Result<void> SystemdNotify::send(std::string_view lines, Deadline deadline) {
  if (!socket_) return {};
  if (deadline.is_never()) deadline = Deadline::after(std::chrono::seconds(5));
  iovec memory{const_cast<char*>(lines.data()), lines.size()};
  msghdr message{};
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  message.msg_name = const_cast<sockaddr*>(to_.data());
  message.msg_namelen = to_.size();
  RUNLOOM_TRY(const std::size_t sent, sendmsg_to(socket_, message, 0, deadline));
  static_cast<void>(sent);  // a datagram goes whole
  return {};
}

Result<void> SystemdNotify::reloading(Deadline deadline) {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // the manager's clock, not a simulated one
  const auto usec = std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
  return send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(usec), deadline);
}

Result<void> SystemdNotify::extend_timeout(std::chrono::microseconds by, Deadline deadline) {
  return send("EXTEND_TIMEOUT_USEC=" + std::to_string(by.count()), deadline);
}

Result<void> SystemdNotify::status(std::string_view text, Deadline deadline) {
  std::string line = "STATUS=";
  for (const char c : text)
    line.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c);
  return send(line, deadline);
}

Result<void> SystemdNotify::main_pid(pid_t pid, Deadline deadline) {
  return send("MAINPID=" + std::to_string(pid), deadline);
}

}  // namespace runloom::net
