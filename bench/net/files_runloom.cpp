// runloom's side of the suite `files`: one hub, one fiber or 32, each with one read at a time.
// Usage: files_runloom FILE
#include <vector>

#include "../peers/micro.hpp"
#include "files.hpp"
#include "runloom/net/file.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

using micro::Clock;
using micro::measure;
using micro::now_ns;
using namespace runloom;

namespace {

void read_blocks(const net::File& file, std::uint64_t seed, int n) {
  std::array<std::byte, files::kRead> buffer;
  files::Offsets offsets(seed);
  for (int i = 0; i < n; ++i) {
    const auto count = file.read_at(buffer, offsets.next());
    if (!count || *count != files::kRead) files::fail("read_at");
  }
}

double by_fibers(const net::File& file, int n, int depth) {
  const double start = now_ns(Clock::kCpu);
  if (depth == 1) {
    read_blocks(file, 1, n);
  } else {
    std::vector<JoinHandle<void>> readers;
    readers.reserve(static_cast<std::size_t>(depth));
    for (int i = 1; i <= depth; ++i)
      readers.push_back(
          spawn([&, i] { read_blocks(file, static_cast<std::uint64_t>(i), n / depth); }));
    for (auto& reader : readers)
      if (!reader.join()) files::fail("join");
  }
  return now_ns(Clock::kCpu) - start;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const files::Work work(argv[1]);
  Options options;
  options.hubs = 1;
  const auto ran = run(
      [&]() -> Result<void> {
        RUNLOOM_TRY(const net::File file, net::File::open(work.path()));
        measure("depth 1", files::kReads, [&](int n) { return by_fibers(file, n, 1); });
        measure("depth 32", files::kReads,
                [&](int n) { return by_fibers(file, n, files::kDepth); });
        return {};
      },
      std::move(options));
  if (!ran) std::fprintf(stderr, "%s\n", ran.error().message().c_str());
  return ran ? 0 : 1;
}
