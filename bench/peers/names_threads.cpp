// Peer of the suite `dns`: glibc's getaddrinfo in 32 threads. Usage: names_threads
#include <netdb.h>

#include <thread>
#include <vector>

#include "../net/names.hpp"

namespace {

void look_up(const char* name, int expected) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(name, "80", &hints, &list) != 0) names::fail("getaddrinfo");
  int count = 0;
  for (const addrinfo* at = list; at; at = at->ai_next)
    ++count;
  ::freeaddrinfo(list);
  if (count != expected) names::fail("getaddrinfo");
}

}  // namespace

int main() {
  const names::World world;
  names::measure("name, 32 at a time", names::kNames, [](int n) {
    std::vector<std::thread> threads;
    for (int i = 0; i < names::kAtOnce; ++i)
      threads.emplace_back([n] {
        for (int done = 0; done < n / names::kAtOnce; ++done)
          look_up(names::next_name().c_str(), 2);
      });
    for (std::thread& thread : threads)
      thread.join();
  });
  names::measure("numeric name", names::kNumbers, [](int n) {
    for (int i = 0; i < n; ++i)
      look_up("192.0.2.1", 1);
  });
  return 0;
}
