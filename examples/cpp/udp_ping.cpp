// Sends numbered datagrams to an echo server and tells what came back, and when.
//
//     build/release/examples/example_udp_echo --port 7000
//     build/release/examples/example_udp_ping 127.0.0.1:7000
//     build/release/examples/example_udp_ping 127.0.0.1:7000 COUNT INTERVAL_MS
//
// One fiber sends and another one receives on the same endpoint. An answer is awaited for a second
// after the last datagram; what comes twice or out of order is told, too.
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "example.hpp"
#include "runloom/net/udp_endpoint.hpp"

using namespace runloom;
using namespace std::chrono_literals;

namespace {

struct Ping {
  std::uint64_t number;
  std::int64_t sent_ns;
};

struct Tally {
  std::size_t sent = 0, received = 0, doubled = 0, reordered = 0, refused = 0;
  std::vector<std::int64_t> round_trips_ns{};
};

Result<void> send_all(const net::UdpEndpoint& endpoint, std::uint64_t count,
                      std::chrono::milliseconds interval, Tally& tally) {
  for (std::uint64_t number = 0; number < count; ++number) {
    const Ping ping{number, monotonic_ns()};
    const auto sent = endpoint.send(std::as_bytes(std::span(&ping, 1)));
    // The answer to an earlier one: nobody listens there. Somebody may, soon.
    if (!sent && sent.error() != std::errc::connection_refused) return sent;
    if (!sent) ++tally.refused;
    ++tally.sent;
    if (auto slept = this_fiber::sleep_for(interval); !slept) return slept;
  }
  return {};
}

Result<void> receive_all(const net::UdpEndpoint& endpoint, std::uint64_t count, Tally& tally) {
  std::vector<bool> seen(count);
  std::uint64_t newest = 0;
  while (tally.received < count) {
    std::array<std::byte, 1500> buffer;
    const auto size = endpoint.recv(buffer);
    if (!size && size.error() == std::errc::connection_refused) {
      ++tally.refused;
      continue;
    }
    if (!size) return fail(size.error());
    Ping ping;
    if (*size != sizeof ping) continue;  // not ours
    std::memcpy(&ping, buffer.data(), sizeof ping);
    if (ping.number >= count) continue;
    if (seen[ping.number]) {
      ++tally.doubled;
      continue;
    }
    seen[ping.number] = true;
    ++tally.received;
    if (ping.number < newest) ++tally.reordered;
    newest = std::max(newest, ping.number);
    tally.round_trips_ns.push_back(monotonic_ns() - ping.sent_ns);
  }
  return {};
}

void report(Tally& tally) {
  const std::size_t lost = tally.sent - tally.received;
  std::printf(
      "%zu sent, %zu received, %.1f%% lost, %zu doubled, %zu out of order\n", tally.sent,
      tally.received,
      tally.sent == 0 ? 0.0 : 100.0 * static_cast<double>(lost) / static_cast<double>(tally.sent),
      tally.doubled, tally.reordered);
  if (tally.refused > 0) std::printf("connection refused %zu times\n", tally.refused);
  auto& times = tally.round_trips_ns;
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) {
    return static_cast<double>(
               times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))]) /
           1000.0;
  };
  std::printf("round trip min %.1f, median %.1f, p99 %.1f, max %.1f us\n", at(0), at(0.5), at(0.99),
              at(1));
}

Result<void> ping(const net::Address& server, std::uint64_t count,
                  std::chrono::milliseconds interval, Tally& tally) {
  RUNLOOM_TRY(const auto endpoint, net::UdpEndpoint::connect(server));
  auto receiver = spawn([&] { return receive_all(endpoint, count, tally); });
  auto sent = send_all(endpoint, count, interval, tally);
  const auto waiting = spawn([&] {
    if (this_fiber::sleep_for(1s)) receiver.cancel();
  });
  if (!sent) receiver.cancel();
  auto received = receiver.join();
  waiting.cancel();
  if (!sent) return sent;
  return !received && received.error() == Errc::cancelled ? Result<void>() : received;
}

template <class Number>
bool to_number(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* usage = "example_udp_ping ADDRESS:PORT [COUNT [INTERVAL_MS]]";
  const auto arguments = example::parse(argc, argv, usage);
  const auto& words = arguments.rest;
  std::string problem = "the server's address is missing";
  std::uint32_t count = 10;
  int interval_ms = 100;
  const auto server = words.empty() ? Result<net::Address>(fail_errno(EINVAL))
                                    : net::Address::parse(words[0], &problem);
  constexpr std::uint32_t kMost = 1'000'000;
  if (!server || words.size() > 3 || (words.size() > 1 && !to_number(words[1], count)) ||
      count > kMost || (words.size() > 2 && !to_number(words[2], interval_ms))) {
    std::fprintf(stderr, "%s\nusage: %s\n",
                 server ? "COUNT is a number from 1 to a million, INTERVAL_MS a positive one"
                        : problem.c_str(),
                 usage);
    return 2;
  }
  Tally tally;
  Options options = Options::from_environment();
  options.hubs = 1;  // the two fibers count without a lock
  const auto pinged =
      run([&] { return ping(*server, count, std::chrono::milliseconds(interval_ms), tally); },
          std::move(options));
  report(tally);
  if (!pinged) {
    std::fprintf(stderr, "%s: %s\n", words[0].c_str(), pinged.error().message().c_str());
    return 1;
  }
  return tally.received == tally.sent ? 0 : 1;
}
