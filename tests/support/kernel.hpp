// What the kernel and /proc tell about this machine and this process.
#pragma once

#include <cstdint>

namespace runloom::test {

// MADV_GUARD_INSTALL, Linux 6.13.
bool kernel_has_guard_install();
std::uint64_t max_map_count();

// A field of /proc/self/status in bytes: "VmRSS", "VmPTE".
std::uint64_t status_bytes(const char* field);
// Processor time of the process so far, in clock ticks: user and system.
std::uint64_t cpu_ticks();
// Threads of the process that bear the name.
int threads_named(const char* name);
// Bytes of memory that can still be had without swapping.
std::uint64_t available_memory();

}  // namespace runloom::test
