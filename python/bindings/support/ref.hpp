// Ref: an owned reference to a Python object, or none.
#pragma once

#include <Python.h>

#include <utility>

namespace runloom::python {

class Ref {
 public:
  constexpr Ref() noexcept = default;
  // Takes over the caller's reference; null is allowed.
  static Ref steal(PyObject* object) noexcept { return Ref(object); }
  // Makes a reference of its own; null is allowed.
  static Ref share(PyObject* object) noexcept { return Ref(Py_XNewRef(object)); }

  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    // The old object goes last: its destructor is Python code and may look at this.
    PyObject* old = std::exchange(object_, std::exchange(other.object_, nullptr));
    Py_XDECREF(old);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  explicit operator bool() const noexcept { return object_ != nullptr; }
  PyObject* get() const noexcept { return object_; }
  // Gives the reference to the caller.
  PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  PyObject** address() noexcept { return &object_; }

 private:
  explicit constexpr Ref(PyObject* object) noexcept : object_(object) {}
  PyObject* object_ = nullptr;
};

}  // namespace runloom::python
