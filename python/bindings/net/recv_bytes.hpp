// RecvBytes: a receive whose result is a bytes object, which is made once there is something.
#pragma once

#include <Python.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>

#include "runloom/net/fd.hpp"

namespace runloom::python {

// A stream whose last read was small reads into memory that all share, and the few bytes are
// copied: cheaper than to allocate what was asked for and to give most of it back. Any other reads
// straight into the new object. The GIL guards the shared memory, from take() to give_back().
class RecvBytes final : public net::RecvBuffer {
 public:
  // `small` belongs to the stream and is kept between its reads.
  RecvBytes(std::size_t size, bool& small) noexcept : size_(size), small_(small) {}
  ~RecvBytes() { Py_XDECREF(bytes_); }
  RecvBytes(const RecvBytes&) = delete;
  RecvBytes& operator=(const RecvBytes&) = delete;

  std::span<std::byte> take() noexcept override;
  std::span<std::byte> take_for(std::size_t count) noexcept override;
  std::size_t room() const noexcept override { return size_; }
  void give_back(std::ptrdiff_t count) noexcept override;

  // The object; null with MemoryError set. After a success.
  PyObject* release() noexcept { return std::exchange(bytes_, nullptr); }

 private:
  const std::size_t size_;
  bool& small_;
  PyObject* bytes_ = nullptr;
};

}  // namespace runloom::python
