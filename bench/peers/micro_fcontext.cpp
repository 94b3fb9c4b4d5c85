// Peer: the least that a fiber switch can cost with Boost.Context: a bare pair of jumps between two
// contexts, without a scheduler, a run queue or per-fiber state. What is above it is the
// scheduler's own. Usage: micro_fcontext one-core
#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <vector>

#include "micro.hpp"

namespace context = boost::context::detail;

namespace {

void bounce(context::transfer_t from) {
  for (;;)
    from = context::jump_fcontext(from.fctx, nullptr);
}

double yield(int n) {
  std::vector<char> stack(64 * 1024);
  context::fcontext_t other =
      context::make_fcontext(stack.data() + stack.size(), stack.size(), bounce);
  const double start = micro::now_ns(micro::Clock::kCpu);
  for (int i = 0; i < n / 2; i++)
    other = context::jump_fcontext(other, nullptr).fctx;
  return micro::now_ns(micro::Clock::kCpu) - start;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || std::strcmp(argv[1], "one-core") != 0) return 64;
  micro::measure("yield", 2'000'000, yield);
}
