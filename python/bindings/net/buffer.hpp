// Memory of Python objects, for as long as an operation uses it.
#pragma once

#include <Python.h>

#include <cstddef>
#include <span>

namespace runloom::python {

// The bytes of a bytes-like object. Whoever tries to resize the object meanwhile gets BufferError.
class Buffer {
 public:
  Buffer() noexcept = default;
  ~Buffer() {
    if (view_.obj) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // False with TypeError (or, of a read, BufferError) set. The caller keeps `object` alive.
  bool read(PyObject* object) {
    if (PyBytes_CheckExact(object)) {
      bytes_ = reinterpret_cast<std::byte*>(PyBytes_AS_STRING(object));
      size_ = static_cast<std::size_t>(PyBytes_GET_SIZE(object));
      return true;
    }
    return get(object, PyBUF_SIMPLE);
  }
  bool write(PyObject* object) {
    if (get(object, PyBUF_WRITABLE)) return true;
    PyErr_Format(PyExc_TypeError, "a read-write bytes-like object is required, not '%.100s'",
                 Py_TYPE(object)->tp_name);
    return false;
  }

  std::size_t size() const noexcept { return size_; }
  std::span<std::byte> bytes() const noexcept { return {bytes_, size_}; }

 private:
  bool get(PyObject* object, int flags) {
    if (PyObject_GetBuffer(object, &view_, flags) < 0) {
      view_.obj = nullptr;
      return false;
    }
    bytes_ = static_cast<std::byte*>(view_.buf);
    size_ = static_cast<std::size_t>(view_.len);
    return true;
  }

  Py_buffer view_{};
  std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace runloom::python
