// Channels: an unbuffered round trip, and a value through a buffered channel.
#include "on_fiber.hpp"
#include "runloom/sched/channel.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::bench {
namespace {

// One iteration: a value to the other fiber and one back, both through rendezvous.
void round_trip(benchmark::State& state) {
  Channel<int> ping;
  Channel<int> pong;
  auto echo = spawn([&] {
    while (auto value = ping.recv())
      require(pong.send(*value), "send");
  });
  int sent = 0;
  for (auto _ : state) {
    require(ping.send(sent), "send");
    const auto value = pong.recv();
    require(value, "recv");
    if (*value != sent) state.SkipWithError("a wrong value came back");
    sent++;
  }
  require(ping.close(), "close");
  require(echo.join(), "join");
}

const auto* const kRoundTrip = one_core("channel round trip", round_trip);

}  // namespace
}  // namespace runloom::bench
