// Sockets: timeouts and options.
#include <fcntl.h>

#include <cmath>

#include "net/buffer.hpp"
#include "net/socket.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

using Use = net::Fd::Use;

PyObject* raise_closed() {
  return raise(make_error_code(Errc::closed));
}

PyObject* settimeout(PyObject* self, PyObject* value) {
  if (!to_timeout(value, as_socket(self).timeout_ns)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* gettimeout(PyObject* self, PyObject*) {
  return from_timeout(as_socket(self).timeout_ns);
}

PyObject* setblocking(PyObject* self, PyObject* value) {
  const int blocks = PyObject_IsTrue(value);
  if (blocks < 0) return nullptr;
  as_socket(self).timeout_ns = blocks ? -1 : 0;
  Py_RETURN_NONE;
}

PyObject* getblocking(PyObject* self, PyObject*) {
  return PyBool_FromLong(as_socket(self).blocking());
}

bool to_option(PyObject* value, const char* what, int& result) {
  Py_ssize_t wide;  // an option may be unsigned
  if (!to_size(value, what, wide)) return false;
  if (wide < INT_MIN || wide > UINT_MAX) {
    PyErr_Format(PyExc_OverflowError, "%s is out of range", what);
    return false;
  }
  result = static_cast<int>(wide);
  return true;
}

// setsockopt(level, option, int | buffer) or (level, option, None, length)
PyObject* setsockopt(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 3 && count != 4) {
    PyErr_Format(PyExc_TypeError, "setsockopt() takes 3 or 4 arguments (%zd given)", count);
    return nullptr;
  }
  int level, option, number = 0;
  Buffer buffer;
  const void* value = &number;
  socklen_t size = sizeof number;
  if (!to_option(args[0], "level", level) || !to_option(args[1], "option", option)) return nullptr;
  if (count == 4) {
    int length;
    if (args[2] != Py_None) {
      PyErr_SetString(PyExc_TypeError, "setsockopt() argument 3 must be None with a length");
      return nullptr;
    }
    if (!to_option(args[3], "optlen", length)) return nullptr;
    value = nullptr;
    size = static_cast<socklen_t>(length);
  } else if (PyIndex_Check(args[2])) {
    if (!to_option(args[2], "value", number)) return nullptr;
  } else {
    if (!buffer.read(args[2])) return nullptr;
    value = buffer.bytes().data();
    size = static_cast<socklen_t>(buffer.size());
  }
  const Use use(as_socket(self).fd);
  if (!use) return raise_closed();
  if (::setsockopt(use.number(), level, option, value, size) != 0) return raise(last_errno());
  Py_RETURN_NONE;
}

PyObject* getsockopt(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 && count != 3) {
    PyErr_Format(PyExc_TypeError, "getsockopt() takes 2 or 3 arguments (%zd given)", count);
    return nullptr;
  }
  int level, option, length = 0;
  if (!to_option(args[0], "level", level) || !to_option(args[1], "option", option) ||
      (count == 3 && !to_option(args[2], "buflen", length)))
    return nullptr;
  const Use use(as_socket(self).fd);
  if (!use) return raise_closed();
  if (length == 0) {
    int value = 0;
    socklen_t size = sizeof value;
    if (::getsockopt(use.number(), level, option, &value, &size) != 0) return raise(last_errno());
    return PyLong_FromLong(value);
  }
  if (length < 0 || length > 1024) {
    PyErr_SetString(PyExc_OSError, "getsockopt buflen out of range");
    return nullptr;
  }
  char value[1024];
  auto size = static_cast<socklen_t>(length);
  if (::getsockopt(use.number(), level, option, value, &size) != 0) return raise(last_errno());
  return PyBytes_FromStringAndSize(value, static_cast<Py_ssize_t>(size));
}

PyObject* get_inheritable(PyObject* self, PyObject*) {
  const Use use(as_socket(self).fd);
  if (!use) return raise_closed();
  const int flags = ::fcntl(use.number(), F_GETFD);
  if (flags < 0) return raise(last_errno());
  return PyBool_FromLong((flags & FD_CLOEXEC) == 0);
}

PyObject* set_inheritable(PyObject* self, PyObject* value) {
  const int inheritable = PyObject_IsTrue(value);
  if (inheritable < 0) return nullptr;
  const Use use(as_socket(self).fd);
  if (!use) return raise_closed();
  if (::fcntl(use.number(), F_SETFD, inheritable ? 0 : FD_CLOEXEC) != 0) return raise(last_errno());
  Py_RETURN_NONE;
}

}  // namespace

bool to_timeout(PyObject* value, std::int64_t& ns) {
  if (value == Py_None) {
    ns = -1;
    return true;
  }
  double seconds;
  if (!to_seconds(value, "timeout", seconds)) return false;
  if (seconds < 0) {
    PyErr_SetString(PyExc_ValueError, "Timeout value out of range");
    return false;
  }
  if (seconds > 9.0e9) {
    PyErr_SetString(PyExc_OverflowError, "timeout doesn't fit into C timeval");
    return false;
  }
  ns = static_cast<std::int64_t>(std::ceil(seconds * 1e9));
  return true;
}

PyObject* from_timeout(std::int64_t ns) {
  if (ns < 0) Py_RETURN_NONE;
  return PyFloat_FromDouble(static_cast<double>(ns) / 1e9);
}

PyMethodDef socket_option_methods[] = {
    method("settimeout", &settimeout, METH_O,
           "settimeout($self, timeout, /)\n--\n\n"
           "Bound each operation by so many seconds, after which it raises TimeoutError.\n\n"
           "None, the default: wait for ever; 0: never wait, BlockingIOError instead."),
    method("gettimeout", &gettimeout, METH_NOARGS,
           "gettimeout($self, /)\n--\n\nThe timeout in seconds; None: there is none."),
    method("setblocking", &setblocking, METH_O,
           "setblocking($self, flag, /)\n--\n\nAs settimeout(None) or settimeout(0)."),
    method("getblocking", &getblocking, METH_NOARGS,
           "getblocking($self, /)\n--\n\nFalse when operations never wait."),
    method("setsockopt", &setsockopt, METH_FASTCALL,
           "setsockopt(level, option, value)\nsetsockopt(level, option, None, optlen)\n\n"
           "Set an option of the socket."),
    method("getsockopt", &getsockopt, METH_FASTCALL,
           "getsockopt($self, level, option, buflen=0, /)\n--\n\n"
           "An option of the socket: an int, or bytes when buflen is given."),
    method("get_inheritable", &get_inheritable, METH_NOARGS,
           "get_inheritable($self, /)\n--\n\nWhether programs that are started inherit it."),
    method("set_inheritable", &set_inheritable, METH_O,
           "set_inheritable($self, inheritable, /)\n--\n\nLet programs that are started have it."),
    {},
};

}  // namespace runloom::python
