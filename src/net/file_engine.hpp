// FileEngine: who makes the system calls on files that might wait for a device, so that the hub's
// thread does not. Private; what files know of it are run_waiting() and its like in file_op.hpp.
#pragma once

#include "file_op.hpp"

namespace runloom::net {

class FileEngine {
 public:
  // Begins. From now on op.complete() is called exactly once, unless withdraw() says otherwise. On
  // the hub's thread.
  virtual Result<void> start(FileOp& op) noexcept = 0;
  // The caller does not want it any more; with op.lock held, on the hub's thread. True: it was not
  // made and op.complete() is not going to be called. False: it is; a call that could still be
  // stopped ends soon, with ECANCELED.
  virtual bool withdraw(FileOp& op) noexcept = 0;

 protected:
  ~FileEngine() = default;
};

// The engine of the calling fiber's hub for this call: the hub's ring where it has one that knows
// the call, else the pool.
FileEngine& file_engine(const FileOp& op) noexcept;
// The blocking pool (runloom/sched/blocking.hpp): at most Options::blocking_threads calls at a
// time, the others wait for their turn in order.
FileEngine& pool_file_engine() noexcept;

// The ring of the calling fiber's hub; null where it has none, or can't make this call.
FileEngine* uring_file_engine(const FileOp& op) noexcept;

// For tests: all calls on the pool, also where a ring could make them, or the calling thread an
// open.
void prefer_pool_for_files(bool prefer) noexcept;
bool pool_is_preferred() noexcept;

}  // namespace runloom::net
