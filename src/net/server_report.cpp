#include "server_report.hpp"

#include <cstdio>
#include <exception>
#include <string>
#include <typeinfo>

namespace runloom::net {
namespace {

std::string text_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

std::string to_string(const ServerReport& report) {
  std::string line = "runloom: server: ";
  line.append(to_string(report.fault)).append(": ").append(report.text);
  if (report.peer.family() != AF_UNSPEC) line += " (client " + report.peer.to_string() + ")";
  if (report.left_out > 0) line += "; " + std::to_string(report.left_out) + " more before it";
  line += '\n';
  return line;
}

const char* to_string(ServerFault fault) noexcept {
  switch (fault) {
    case ServerFault::accept:
      return "accept failed, will try again";
    case ServerFault::no_fiber:
      return "no fiber for a connection, which was closed";
    case ServerFault::handler_exception:
      return "a handler threw, its connection was closed";
    case ServerFault::listener:
      return "a listener broke, the server ends";
    case ServerFault::proxy_header:
      return "a bad PROXY header, the connection was closed";
    case ServerFault::handshake:
      return "a handshake failed, the connection was closed";
    case ServerFault::notify:
      return "the service manager could not be told";
  }
  return "unknown fault";
}

std::string to_string(const ServerStats& stats) {
  std::string out = "accepted " + std::to_string(stats.accepted);
  out += ", active " + std::to_string(stats.active);
  out += ", rejected " + std::to_string(stats.rejected);
  out += ", cancelled " + std::to_string(stats.cancelled);
  const auto add = [&out](const char* name, std::uint64_t count) {
    if (count != 0) out.append(", ").append(name).append(" ").append(std::to_string(count));
  };
  add("rejected peers", stats.rejected_peers);
  add("peers", stats.peers);
  add("untrusted", stats.untrusted);
  add("proxied", stats.proxied);
  add("handshakes", stats.handshakes);
  add("lingered", stats.lingered);
  add("taken at stop", stats.taken_at_stop);
  add("closed at stop", stats.closed_at_stop);
  constexpr std::array<const char*, kServerTimeouts> kTimeouts{
      "timed out in handshakes", "timed out before a first byte", "timed out idle",
      "timed out in heads",      "timed out in bodies",           "timed out in writes"};
  for (std::size_t i = 0; i < kServerTimeouts; ++i)
    add(kTimeouts[i], stats.timeouts[i]);
  for (std::size_t i = 0; i < kServerFaults; ++i) {
    if (stats.faults[i] == 0) continue;
    out.append("; ").append(to_string(static_cast<ServerFault>(i)));
    out += ": " + std::to_string(stats.faults[i]);
  }
  return out;
}

void FaultLog::add(ServerFault fault, std::error_code error, const Address& peer,
                   const std::exception_ptr& exception) noexcept {
  const auto index = static_cast<std::size_t>(fault);
  counts_[index].fetch_add(1, std::memory_order_relaxed);
  const auto left_out = limits_[index].pass(monotonic_ns());
  if (!left_out) return;
  // A report that can't be made must not end the server that it is about.
  try {
    const std::string text = exception ? text_of(exception) : error.message();
    const ServerReport report{.fault = fault,
                              .error = error,
                              .exception = exception,
                              .text = text,
                              .peer = peer,
                              .left_out = *left_out};
    if (report_) {
      report_(report);
    } else {
      std::fputs(to_string(report).c_str(), stderr);
    }
  } catch (...) {
    std::fputs("runloom: server: a report failed\n", stderr);
  }
}

}  // namespace runloom::net
