// Lock, RLock and Mutex: exclusion between fibers, OS threads, and both.
#pragma once

#include <Python.h>

#include "core/park.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/mutex.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::python {

extern PyTypeObject* lock_type;   // of runloom::Mutex, with threading.Lock's methods
extern PyTypeObject* rlock_type;  // of runloom::RecursiveMutex, with threading.RLock's

template <class M>
Result<void> lock_until(M& mutex, Deadline deadline) {
  if (mutex.try_lock()) [[likely]]
    return {};
  SharedWait wait;
  return mutex.lock(deadline);
}

// A Lock or an RLock; the object must stay alive.
class AnyLock {
 public:
  AnyLock() noexcept = default;
  // False with TypeError set when it is neither.
  static bool from(PyObject* object, AnyLock& lock);

  // Calls fn with the Mutex or the RecursiveMutex.
  template <class Fn>
  auto with(Fn&& fn) const {
    return plain_ ? fn(*plain_) : fn(*recursive_);
  }
  // Whether the caller may have it: a plain one belongs to nobody in particular.
  bool held() const noexcept { return plain_ ? plain_->locked() : recursive_->owned(); }

 private:
  Mutex* plain_ = nullptr;
  RecursiveMutex* recursive_ = nullptr;
};

}  // namespace runloom::python
