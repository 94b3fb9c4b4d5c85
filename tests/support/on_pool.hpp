// OnPool: while it lives, all calls on files are made by the blocking pool, where a Hold can stop
// them and a Fault make them fail, also on a hub whose ring could make them.
#pragma once

#include "net/file_engine.hpp"

namespace runloom::test {

struct OnPool {
  OnPool() { net::prefer_pool_for_files(true); }
  ~OnPool() { net::prefer_pool_for_files(false); }
  OnPool(const OnPool&) = delete;
  OnPool& operator=(const OnPool&) = delete;
};

}  // namespace runloom::test
