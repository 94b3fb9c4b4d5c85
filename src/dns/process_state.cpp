#include "process_state.hpp"

#include <pthread.h>

namespace runloom::dns {
namespace {
constinit std::atomic<unsigned> generation{0};
}

unsigned fork_generation() noexcept {
  static const bool installed = [] {
    return ::pthread_atfork(nullptr, nullptr,
                            [] { generation.fetch_add(1, std::memory_order_relaxed); }) == 0;
  }();
  (void)installed;
  return generation.load(std::memory_order_relaxed);
}

}  // namespace runloom::dns
