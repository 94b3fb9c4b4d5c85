// Uses the network layer as an outside project does, from a fiber, so that the layer below is
// linked, too.
#include <cstdio>
#include <runloom/net/address.hpp>
#include <runloom/sched/scheduler.hpp>

int main() {
  auto text = runloom::run([]() -> runloom::Result<std::string> {
    auto address = runloom::net::Address::parse("[::1]:8080");
    if (!address) return runloom::Unexpected{address.error()};
    return address->with_port(9090).to_string();
  });
  if (!text || *text != "[::1]:9090") {
    std::fprintf(stderr, "the address was not understood\n");
    return 1;
  }
  return 0;
}
