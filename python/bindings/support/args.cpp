#include "support/args.hpp"

#include <chrono>
#include <cmath>
#include <vector>

#include "support/errors.hpp"
#include "support/ref.hpp"

namespace runloom::python {
namespace {

int find_parameter(const Signature& signature, PyObject* keyword) {
  for (int i = 0; i < signature.count; ++i)
    if (PyUnicode_CompareWithASCIIString(keyword, signature.names[i]) == 0) return i;
  return -1;
}

bool take_keyword(const Signature& signature, PyObject* keyword, PyObject* value,
                  PyObject** values) {
  const int i = find_parameter(signature, keyword);
  if (i < 0) {
    PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'",
                 signature.function, keyword);
    return false;
  }
  if (values[i]) {
    PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", signature.function,
                 signature.names[i]);
    return false;
  }
  values[i] = value;
  return true;
}

bool take_positional(const Signature& signature, PyObject* const* args, Py_ssize_t count,
                     PyObject** values) {
  if (count > signature.positional) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional argument%s (%zd given)",
                 signature.function, signature.positional, signature.positional == 1 ? "" : "s",
                 count);
    return false;
  }
  for (int i = 0; i < signature.count; ++i)
    values[i] = i < count ? args[i] : nullptr;
  return true;
}

bool check_required(const Signature& signature, PyObject** values) {
  for (int i = 0; i < signature.required; ++i) {
    if (values[i]) continue;
    PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s' (pos %d)",
                 signature.function, signature.names[i], i + 1);
    return false;
  }
  return true;
}

}  // namespace

namespace detail {

bool parse_arguments(const Signature& signature, PyObject* const* args, Py_ssize_t count,
                     PyObject* keywords, PyObject** values) {
  if (!take_positional(signature, args, count, values)) return false;
  if (keywords) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i)
      if (!take_keyword(signature, PyTuple_GET_ITEM(keywords, i), args[count + i], values))
        return false;
  }
  return check_required(signature, values);
}

}  // namespace detail

bool parse_constructor(const Signature& signature, PyObject* args, PyObject* keywords,
                       PyObject** values) {
  auto* tuple = reinterpret_cast<PyTupleObject*>(args);
  if (!take_positional(signature, tuple->ob_item, PyTuple_GET_SIZE(args), values)) return false;
  if (keywords) {
    PyObject *keyword, *value;
    for (Py_ssize_t i = 0; PyDict_Next(keywords, &i, &keyword, &value);)
      if (!take_keyword(signature, keyword, value, values)) return false;
  }
  return check_required(signature, values);
}

bool takes_no_arguments(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  if (type->tp_init != PyBaseObject_Type.tp_init) return true;
  if (PyTuple_GET_SIZE(args) == 0 && (!keywords || PyDict_GET_SIZE(keywords) == 0)) return true;
  PyErr_Format(PyExc_TypeError, "%.100s() takes no arguments", type->tp_name);
  return false;
}

bool to_seconds(PyObject* value, const char* what, double& seconds) {
  seconds = PyFloat_AsDouble(value);
  if (seconds == -1.0 && PyErr_Occurred()) {
    if (PyErr_ExceptionMatches(PyExc_TypeError))
      PyErr_Format(PyExc_TypeError, "%s must be a number, not %.100s", what,
                   Py_TYPE(value)->tp_name);
    return false;
  }
  if (std::isnan(seconds)) {
    PyErr_Format(PyExc_ValueError, "%s must not be NaN", what);
    return false;
  }
  return true;
}

bool to_size(PyObject* value, const char* what, Py_ssize_t& result) {
  if (PyLong_CheckExact(value)) [[likely]] {
    result = PyLong_AsSsize_t(value);
    if (result != -1) return true;
    PyErr_Clear();
  }
  const Ref index = Ref::steal(PyNumber_Index(value));
  if (!index) {
    if (PyErr_ExceptionMatches(PyExc_TypeError))
      PyErr_Format(PyExc_TypeError, "%s must be an integer, not %.100s", what,
                   Py_TYPE(value)->tp_name);
    return false;
  }
  result = PyLong_AsSsize_t(index.get());
  if (result != -1 || !PyErr_Occurred()) return true;
  if (PyErr_ExceptionMatches(PyExc_OverflowError))
    PyErr_Format(PyExc_OverflowError, "%s is out of range", what);
  return false;
}

bool to_int(PyObject* value, const char* what, int& result) {
  Py_ssize_t wide;
  if (!to_size(value, what, wide)) return false;
  result = static_cast<int>(wide);
  if (result == wide) return true;
  PyErr_Format(PyExc_OverflowError, "%s is out of range", what);
  return false;
}

Deadline after_seconds(double seconds) noexcept {
  return Deadline::after(std::chrono::duration<double>(seconds));
}

bool to_deadline(PyObject* timeout, Deadline& deadline) {
  deadline = Deadline::never();
  if (!is_given(timeout)) return true;
  double seconds;
  if (!to_seconds(timeout, "timeout", seconds)) return false;
  deadline = after_seconds(seconds);
  return true;
}

PyObject* call_python(const char* module, const char* function, PyObject* self,
                      PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const Ref home = Ref::steal(PyImport_ImportModule(module));
  const Ref callable = Ref::steal(home ? PyObject_GetAttrString(home.get(), function) : nullptr);
  if (!callable) return nullptr;
  const Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  return or_no_memory([&] {
    std::vector<PyObject*> all{self};
    all.insert(all.end(), args, args + count + keywords);
    return PyObject_Vectorcall(callable.get(), all.data(), static_cast<std::size_t>(count) + 1,
                               names);
  });
}

}  // namespace runloom::python
