// Names for code addresses. For diagnostics.
#pragma once

#include <string>

namespace runloom::detail {

// "function+0x12 (object)", with the symbols that the object's file has, exported or not;
// "0x... (object+0x...)" without. Not for signal handlers.
std::string describe_frame(void* pc, bool is_return_address);

}  // namespace runloom::detail
