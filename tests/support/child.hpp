// Runs code in a forked child process and tells how it ended: for what a process does only once,
// such as dying.
#pragma once

#include <functional>
#include <string>

namespace runloom::test {

struct ChildEnd {
  bool exited = false;
  int code = -1;    // when it exited
  int signal = 0;   // that killed it
  std::string out;  // what it wrote on stdout and stderr
};

// `body` returns the exit code. No exit handler runs in the child. A child that is still there
// after 10 s is killed with SIGKILL.
ChildEnd run_child(const std::function<int()>& body);

// Waits for a process forked by the test itself, likewise bounded. The output stays empty.
ChildEnd wait_child(int pid);

}  // namespace runloom::test
