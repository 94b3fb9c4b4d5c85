// runloom's side of the suite `dns`: one hub, 32 fibers. Usage: names_runloom
#include "names.hpp"
#include "runloom/dns/resolver.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/scheduler.hpp"

using namespace runloom;

namespace {

void look_up(dns::Resolver& resolver, const std::string& name) {
  const auto found = resolver.getaddrinfo(name, "80", {.socktype = SOCK_STREAM});
  if (!found || found->size() != 2) names::fail(found ? "getaddrinfo" : "getaddrinfo failed");
}

}  // namespace

int main() {
  const names::World world;
  dns::Resolver resolver;
  Options options;
  options.hubs = 1;
  const auto ran = run(
      [&]() -> Result<void> {
        names::measure("name, 32 at a time", names::kNames, [&](int n) {
          JoinSet<> set;
          for (int i = 0; i < names::kAtOnce; ++i)
            if (!set.spawn([&] {
                  for (int done = 0; done < n / names::kAtOnce; ++done)
                    look_up(resolver, names::next_name());
                }))
              names::fail("spawn");
          if (!set.wait()) names::fail("wait");
        });
        names::measure("numeric name", names::kNumbers, [&](int n) {
          for (int i = 0; i < n; ++i)
            if (!resolver.getaddrinfo("192.0.2.1", "80", {.socktype = SOCK_STREAM}))
              names::fail("getaddrinfo");
        });
        return {};
      },
      std::move(options));
  if (!ran) std::fprintf(stderr, "%s\n", ran.error().message().c_str());
  return ran ? 0 : 1;
}
