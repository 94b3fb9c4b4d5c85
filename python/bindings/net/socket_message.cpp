// Sockets: messages with ancillary data, recvmsg() and sendmsg().
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <vector>

#include "core/park.hpp"
#include "net/buffer.hpp"
#include "net/served.hpp"
#include "net/socket.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// ---------------------------------------------------------------- ancillary data

// Bytes of a part's data, within what the kernel has written.
std::size_t data_size(const msghdr& message, const cmsghdr* header) noexcept {
  const auto* begin = reinterpret_cast<const char*>(header);
  const auto* end = static_cast<const char*>(message.msg_control) + message.msg_controllen;
  const std::size_t whole =
      std::min<std::size_t>(header->cmsg_len, static_cast<std::size_t>(end - begin));
  return whole < CMSG_LEN(0) ? 0 : whole - CMSG_LEN(0);
}

// When nobody gets to know the descriptors that came, they must not stay open.
void close_descriptors(msghdr& message) noexcept {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = data_size(message, header) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      ::close(fd);
    }
  }
}

// [(level, type, data), ...]
PyObject* ancillary_list(msghdr& message) {
  Ref list = Ref::steal(PyList_New(0));
  if (!list) return nullptr;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    const auto* data = reinterpret_cast<const char*>(CMSG_DATA(header));
    const auto size = static_cast<Py_ssize_t>(data_size(message, header));
    const Ref part = Ref::steal(Py_BuildValue("iiN", header->cmsg_level, header->cmsg_type,
                                              PyBytes_FromStringAndSize(data, size)));
    if (!part || PyList_Append(list.get(), part.get()) < 0) return nullptr;
  }
  return list.release();
}

// The ancillary data to send, in the layout of cmsg(3).
class Control {
 public:
  bool read(PyObject* ancillary) {
    // A copy: what is converted may change a list.
    const Ref parts = Ref::steal(PySequence_Tuple(ancillary));
    if (!parts) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts.get()); ++i)
      if (!add(PyTuple_GET_ITEM(parts.get(), i))) return false;
    return true;
  }
  void attach(msghdr& message) noexcept {
    if (bytes_.empty()) return;
    message.msg_control = bytes_.data();
    message.msg_controllen = bytes_.size();
  }

 private:
  bool add(PyObject* part) {
    const Ref fields = Ref::steal(PySequence_Tuple(part));
    if (!fields) return false;
    if (PyTuple_GET_SIZE(fields.get()) != 3) {
      PyErr_SetString(PyExc_TypeError, "sendmsg() ancillary data items must be 3-item sequences");
      return false;
    }
    int level, type;
    Buffer data;
    if (!to_int(PyTuple_GET_ITEM(fields.get(), 0), "level", level) ||
        !to_int(PyTuple_GET_ITEM(fields.get(), 1), "type", type) ||
        !data.read(PyTuple_GET_ITEM(fields.get(), 2)))
      return false;
    if (data.size() > INT_MAX / 2 || bytes_.size() > INT_MAX / 2) {
      PyErr_SetString(PyExc_OSError, "ancillary data item too large");
      return false;
    }
    const std::size_t at = bytes_.size();
    bytes_.resize(at + CMSG_SPACE(data.size()));
    cmsghdr header{};
    header.cmsg_level = level;
    header.cmsg_type = type;
    header.cmsg_len = CMSG_LEN(data.size());
    std::memcpy(bytes_.data() + at, &header, sizeof header);
    if (data.size() != 0)
      std::memcpy(bytes_.data() + at + CMSG_LEN(0), data.bytes().data(), data.size());
    return true;
  }

  std::vector<char> bytes_;
};

// Several buffers, kept for the time of one operation.
class Buffers {
 public:
  bool read(PyObject* objects, bool writable) {
    // A copy: what is converted may change a list.
    parts_ = Ref::steal(PySequence_Tuple(objects));
    if (!parts_) return false;
    const auto size = static_cast<std::size_t>(PyTuple_GET_SIZE(parts_.get()));
    buffers_ = std::make_unique<Buffer[]>(size);
    for (std::size_t i = 0; i < size; ++i) {
      PyObject* object = PyTuple_GET_ITEM(parts_.get(), static_cast<Py_ssize_t>(i));
      if (!(writable ? buffers_[i].write(object) : buffers_[i].read(object))) return false;
      vectors_.push_back({buffers_[i].bytes().data(), buffers_[i].size()});
    }
    return true;
  }
  void attach(msghdr& message) noexcept {
    message.msg_iov = vectors_.data();
    message.msg_iovlen = vectors_.size();
  }

 private:
  Ref parts_;
  std::unique_ptr<Buffer[]> buffers_;
  std::vector<iovec> vectors_;
};

// ---------------------------------------------------------------- receive

bool check_count(const char* function, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most) {
  if (count >= least && count <= most) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd arguments (%zd given)", function, least,
               most, count);
  return false;
}

// The arguments behind the first one: ancbufsize and flags.
bool receive_arguments(PyObject* const* args, Py_ssize_t count, Py_ssize_t& room, int& flags) {
  room = 0;
  flags = 0;
  if ((count > 1 && !to_size(args[1], "ancbufsize", room)) ||
      (count > 2 && !to_int(args[2], "flags", flags)))
    return false;
  if (room >= 0 && room <= INT_MAX) return true;
  PyErr_SetString(PyExc_ValueError, "invalid ancillary data buffer length");
  return false;
}

// Receives into the message's buffers; (head(count), ancillary data, flags, address).
template <class Head>
PyObject* receive_message(Socket& socket, msghdr& message, Py_ssize_t room, int flags,
                          Head&& head) {
  if (socket.unread) return raise(make_error_code(Errc::unread_data));
  SocketAddress from;
  std::vector<char> control(static_cast<std::size_t>(room));
  message.msg_name = &from.storage;
  message.msg_namelen = sizeof from.storage;
  message.msg_control = room != 0 ? control.data() : nullptr;
  message.msg_controllen = static_cast<std::size_t>(room);
  std::size_t count;
  {
    ParkGuard guard;
    const auto received = bounded_read(socket, socket.deadline(), [&](Deadline until) {
      return socket.fd.recvmsg(message, flags_of(socket, flags), until);
    });
    if (!received) return raise_io(socket, received.error());
    count = *received;
  }
  from.size = message.msg_namelen;
  // Always asked for; the kernel repeats it.
  const int shown =
      (flags & MSG_CMSG_CLOEXEC) != 0 ? message.msg_flags : message.msg_flags & ~MSG_CMSG_CLOEXEC;
  const Ref first = Ref::steal(head(count));
  const Ref ancillary = Ref::steal(first ? ancillary_list(message) : nullptr);
  const Ref address = Ref::steal(ancillary ? from_address(from) : nullptr);
  PyObject* result =
      address ? Py_BuildValue("OOiO", first.get(), ancillary.get(), shown, address.get()) : nullptr;
  if (!result) close_descriptors(message);
  return result;
}

PyObject* recvmsg(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Py_ssize_t size, room;
  int flags;
  if (!check_count("recvmsg", count, 1, 3) || !to_size(args[0], "bufsize", size) ||
      !receive_arguments(args, count, room, flags))
    return nullptr;
  if (size < 0) {
    PyErr_SetString(PyExc_ValueError, "negative buffer size in recvmsg()");
    return nullptr;
  }
  Ref bytes = Ref::steal(PyBytes_FromStringAndSize(nullptr, size));
  if (!bytes) return nullptr;
  return or_no_memory([&] {
    iovec memory{PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(size)};
    msghdr message{};
    message.msg_iov = &memory;
    message.msg_iovlen = 1;
    return receive_message(as_socket(self), message, room, flags,
                           [&](std::size_t got) -> PyObject* {
                             PyObject* data = bytes.release();
                             const auto length = static_cast<Py_ssize_t>(got);
                             if (length < size) _PyBytes_Resize(&data, length);
                             return data;
                           });
  });
}

PyObject* recvmsg_into(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Py_ssize_t room;
  int flags;
  if (!check_count("recvmsg_into", count, 1, 3) || !receive_arguments(args, count, room, flags))
    return nullptr;
  return or_no_memory([&]() -> PyObject* {
    Buffers buffers;
    if (!buffers.read(args[0], true)) return nullptr;
    msghdr message{};
    buffers.attach(message);
    return receive_message(as_socket(self), message, room, flags,
                           [](std::size_t got) { return PyLong_FromSize_t(got); });
  });
}

// ---------------------------------------------------------------- send

PyObject* sendmsg(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Socket& socket = as_socket(self);
  int flags = 0;
  if (!check_count("sendmsg", count, 1, 4) || (count > 2 && !to_int(args[2], "flags", flags)))
    return nullptr;
  return or_no_memory([&]() -> PyObject* {
    Buffers buffers;
    Control control;
    SocketAddress to;
    msghdr message{};
    if (!buffers.read(args[0], false) ||
        (count > 1 && args[1] != Py_None && !control.read(args[1])))
      return nullptr;
    buffers.attach(message);
    control.attach(message);
    if (count > 3 && args[3] != Py_None) {
      if (!to_address(socket.family, args[3], "sendmsg", to)) return nullptr;
      message.msg_name = &to.storage;
      message.msg_namelen = to.size;
    }
    ParkGuard guard;
    const auto sent = send_message(socket, message, flags);
    return sent ? PyLong_FromSize_t(*sent) : raise_io(socket, sent.error());
  });
}

}  // namespace

PyMethodDef socket_message_methods[] = {
    method(
        "recvmsg", &recvmsg, METH_FASTCALL,
        "recvmsg($self, bufsize, ancbufsize=0, flags=0, /)\n--\n\n"
        "Receive (data, ancdata, msg_flags, address), with up to ancbufsize bytes of ancdata.\n\n"
        "Descriptors that come with it are close-on-exec."),
    method("recvmsg_into", &recvmsg_into, METH_FASTCALL,
           "recvmsg_into($self, buffers, ancbufsize=0, flags=0, /)\n--\n\n"
           "As recvmsg(), into an iterable of buffers; nbytes instead of data."),
    method("sendmsg", &sendmsg, METH_FASTCALL,
           "sendmsg($self, buffers, ancdata=(), flags=0, address=None, /)\n--\n\n"
           "Send an iterable of buffers as one message; return how many bytes went.\n\n"
           "ancdata is an iterable of (level, type, data)."),
    {},
};

}  // namespace runloom::python
