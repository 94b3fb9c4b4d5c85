// The way from a File to its state, for the parts of it that stand in other sources.
#pragma once

#include "file_state.hpp"
#include "runloom/net/file.hpp"

namespace runloom::net {

// Empty: the file is closed.
FileUse use_of(const File& file) noexcept;

}  // namespace runloom::net
