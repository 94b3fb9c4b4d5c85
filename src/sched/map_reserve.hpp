// MapReserve: memory maps that the process keeps, so that stacks don't take the last one.
//
// Guards made by mprotect cost two maps a stack, and vm.max_map_count bounds the maps of the
// process. At that bound malloc fails, and so does whatever wants to raise the error: CPython 3.11
// ends the process then. So some maps are held back before stacks take any, and given to the
// program when the kernel has no more. Stacks get further ones only when the reserve is whole
// again.
#pragma once

#include <cstddef>

namespace runloom::detail {

class MapReserve {
 public:
  static constexpr std::size_t kMaps = 128;

  // Makes sure that the reserve is there. False: the kernel has no maps for it. Any thread.
  static bool hold() noexcept;
  // Gives it to the program: the kernel has refused a map.
  static void release() noexcept;
};

}  // namespace runloom::detail
