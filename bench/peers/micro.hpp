// micro.hpp: how the C++ micro peers measure and report. One line of JSON a case:
//   {"case": "yield", "value": 5.4, "unit": "ns"}
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <string>

namespace micro {

// CPU time of the process: what a case on one core costs, whatever else runs there.
// Wall time: what a round trip between two cores takes.
enum class Clock : clockid_t { kCpu = CLOCK_PROCESS_CPUTIME_ID, kWall = CLOCK_MONOTONIC };

inline double now_ns(Clock clock) {
  timespec ts{};
  clock_gettime(static_cast<clockid_t>(clock), &ts);
  return static_cast<double>(ts.tv_sec) * 1e9 + static_cast<double>(ts.tv_nsec);
}

inline void report(const char* name, double value, const char* unit) {
  std::printf("{\"case\": \"%s\", \"value\": %.3f, \"unit\": \"%s\"}\n", name, value, unit);
  std::fflush(stdout);
}

// Runs `body(n)` three times and reports the best time of one of its n iterations. `body` returns
// how long the n iterations took, so that it can leave its own set-up out.
template <class Body>
void measure(const char* name, int n, Body body) {
  double best = std::numeric_limits<double>::max();
  for (int repetition = 0; repetition < 3; repetition++)
    best = std::min(best, body(n) / n);
  report(name, best, "ns");
}

// Resident memory and page tables of this process, in bytes.
inline double memory() {
  std::ifstream status("/proc/self/status");
  double bytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0 || line.rfind("VmPTE:", 0) == 0) {
      bytes += std::stod(line.substr(6)) * 1024;
    }
  }
  return bytes;
}

}  // namespace micro
