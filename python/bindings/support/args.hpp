// Arguments of functions: one parser for METH_FASTCALL | METH_KEYWORDS, and the conversions that
// several of them need. Texts of errors follow CPython's.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "runloom/sched/deadline.hpp"

namespace runloom::python {

// The parameters of a function. Lives as long as the program.
struct Signature {
  const char* function;
  const char* const* names;  // of all parameters, in order
  int count;                 // of names
  int required;              // the first ones
  int positional;            // how many may be given by position
};

namespace detail {
bool parse_arguments(const Signature& signature, PyObject* const* args, Py_ssize_t count,
                     PyObject* keywords, PyObject** values);
}

// Sorts arguments into `values` (borrowed; null: not given). False with TypeError set.
template <std::size_t N>
bool parse(const Signature& signature, PyObject* const* args, Py_ssize_t count, PyObject* keywords,
           PyObject* (&values)[N]) {
  if (!keywords && count == signature.count && count <= signature.positional) {
    for (std::size_t i = 0; i < N; ++i)
      values[i] = args[i];
    return true;
  }
  return detail::parse_arguments(signature, args, count, keywords, values);
}

// The same for a tp_new or tp_init, which get a tuple and a dict.
bool parse_constructor(const Signature& signature, PyObject* args, PyObject* keywords,
                       PyObject** values);

// For a type whose constructor takes nothing. Subclasses with an __init__ of their own may take
// what they like.
bool takes_no_arguments(PyTypeObject* type, PyObject* args, PyObject* keywords);

inline bool is_given(PyObject* value) noexcept {
  return value != nullptr && value != Py_None;
}

// Each converts or sets an exception that names `what`. The results are undefined on failure.
bool to_seconds(PyObject* value, const char* what, double& seconds);  // NaN: ValueError
bool to_int(PyObject* value, const char* what, int& result);
bool to_size(PyObject* value, const char* what, Py_ssize_t& result);
// A timeout in seconds as a deadline from now; null or None: never.
bool to_deadline(PyObject* timeout, Deadline& deadline);

Deadline after_seconds(double seconds) noexcept;

// Calls a function of the Python half as a method of `self`, with the arguments that a
// fast_method() got.
PyObject* call_python(const char* module, const char* function, PyObject* self,
                      PyObject* const* args, Py_ssize_t count, PyObject* names);

}  // namespace runloom::python
