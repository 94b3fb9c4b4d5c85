// Errors of the core as Python exceptions: the one place that maps them.
#pragma once

#include <Python.h>

#include <new>
#include <system_error>

namespace runloom::python {

// runloom.Cancelled, a BaseException: raised by a parking call of a cancelled fiber.
extern PyObject* cancelled_error;

// Sets the exception that `error` stands for and returns null:
//   cancelled       -> what interrupts the calling fiber (a signal handler's exception), else
//                      runloom.Cancelled
//   timed_out       -> TimeoutError; Cancelled when a scope around the call has ended it
//   closed          -> OSError(EBADF)
//   park_forbidden  -> RuntimeError that names the place
//   an errno        -> the OSError of that number
// and RuntimeError, ValueError or MemoryError for what is left.
PyObject* raise(std::error_code error);

// fn(), or null (false) with MemoryError set when C++ ran out of memory in it: no C++ exception may
// leave a function that CPython calls.
template <class Fn>
auto or_no_memory(Fn&& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return {};
  }
}

// The exception being raised, taken out of the thread state; null: none. With its traceback set.
PyObject* take_raised() noexcept;
// Raises an exception object again; takes over the reference.
void raise_again(PyObject* exception) noexcept;

// Adds the exception types to the module. False with an exception set on failure.
bool init_errors(PyObject* module);

}  // namespace runloom::python
