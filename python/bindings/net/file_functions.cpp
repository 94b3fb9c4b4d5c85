#include "net/file_functions.hpp"

#include <cerrno>

#include "core/park.hpp"
#include "net/buffer.hpp"
#include "net/fd_argument.hpp"
#include "runloom/net/fd_ops.hpp"
#include "runloom/net/file.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// Null or -1: at the position of the descriptor. A negative offset fails as pread(2) does.
bool to_offset(PyObject* value, off_t& offset) {
  offset = -1;
  if (!value) return true;
  Py_ssize_t given;
  if (!to_size(value, "offset", given)) return false;
  if (given < -1) {
    raise(errno_code(EINVAL));
    return false;
  }
  offset = given;
  return true;
}

Result<std::size_t> read(int fd, std::span<std::byte> memory, off_t offset) {
  ParkGuard guard;
  return offset < 0 ? net::fd_read(fd, memory) : net::fd_read_at(fd, memory, offset);
}

// Until all is written. An error after some bytes is told by the next call, as write(2) does it.
Result<std::size_t> write(int fd, std::span<const std::byte> data, off_t offset) {
  ParkGuard guard;
  std::size_t written = 0;
  do {
    const auto rest = data.subspan(written);
    auto count = offset < 0 ? net::fd_write(fd, rest)
                            : net::fd_write_at(fd, rest, offset + static_cast<off_t>(written));
    if (!count && written == 0) return count;
    if (!count || *count == 0) break;
    written += *count;
  } while (written < data.size());
  return written;
}

PyObject* read_bytes(int fd, Py_ssize_t size, off_t offset) {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, size);
  if (!bytes) return nullptr;
  const auto count = read(
      fd, {reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes)), static_cast<std::size_t>(size)},
      offset);
  if (!count) {
    Py_DECREF(bytes);
    return raise(count.error());
  }
  if (static_cast<Py_ssize_t>(*count) != size)
    _PyBytes_Resize(&bytes, static_cast<Py_ssize_t>(*count));
  return bytes;
}

// file_read(fd, n, offset=-1) -> bytes, or file_read(fd, buf, n, offset=-1) -> int
PyObject* file_read(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const to_bytes[] = {"fd", "n", "offset"};
  static const char* const to_buffer[] = {"fd", "buf", "n", "offset"};
  static const Signature bytes_signature{"file_read", to_bytes, 3, 2, 3};
  static const Signature buffer_signature{"file_read", to_buffer, 4, 3, 4};
  bool into = count >= 2 && PyObject_CheckBuffer(args[1]);
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i)
    into = into || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), "buf") == 0;
  int fd;
  Py_ssize_t size;
  off_t offset;
  if (!into) {
    PyObject* value[3];
    if (!parse(bytes_signature, args, count, names, value) || !to_fd(value[0], fd) ||
        !to_count(value[1], "n", size) || !to_offset(value[2], offset))
      return nullptr;
    return read_bytes(fd, size, offset);
  }
  PyObject* value[4];
  Buffer memory;
  if (!parse(buffer_signature, args, count, names, value) || !to_fd(value[0], fd) ||
      !to_count(value[2], "n", size) || !to_offset(value[3], offset) || !memory.write(value[1]))
    return nullptr;
  if (static_cast<std::size_t>(size) > memory.size()) {
    PyErr_SetString(PyExc_ValueError, "buffer too small for requested bytes");
    return nullptr;
  }
  const auto moved = read(fd, memory.bytes().first(static_cast<std::size_t>(size)), offset);
  return moved ? PyLong_FromSize_t(*moved) : raise(moved.error());
}

PyObject* file_write(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"fd", "data", "offset"};
  static const Signature signature{"file_write", parameters, 3, 2, 3};
  PyObject* value[3];
  int fd;
  off_t offset;
  Buffer data;
  if (!parse(signature, args, count, names, value) || !to_fd(value[0], fd) ||
      !to_offset(value[2], offset) || !data.read(value[1]))
    return nullptr;
  const auto written = write(fd, data.bytes(), offset);
  return written ? PyLong_FromSize_t(*written) : raise(written.error());
}

PyObject* iouring_available(PyObject*, PyObject*) {
  return PyBool_FromLong(net::io_uring_available());
}

PyMethodDef functions[] = {
    fast_method(
        "file_read", &file_read,
        "file_read(fd, n, offset=-1) -> bytes\nfile_read(fd, buf, n, offset=-1) -> int\n\n"
        "Read up to n bytes of a file; fewer only at its end, nothing there.\n\n"
        "An offset of -1 reads at the position and moves it. Other fibers run while a device\n"
        "is waited for. Descriptors that are no files are read as by fd_read."),
    fast_method(
        "file_write", &file_write,
        "file_write($module, /, fd, data, offset=-1)\n--\n\n"
        "Write the data to a file; return how many bytes, fewer only when the device is full.\n\n"
        "An offset of -1 writes at the position and moves it."),
    method("iouring_available", &iouring_available, METH_NOARGS,
           "iouring_available($module, /)\n--\n\nWhether this process may make an io_uring."),
    {},
};

}  // namespace

bool add_file_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
