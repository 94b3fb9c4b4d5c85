#include "server/server.hpp"

#include <unistd.h>

#include <new>
#include <utility>

#include "core/g.hpp"
#include "core/park.hpp"
#include "net/address.hpp"
#include "net/socket.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/object.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

PyTypeObject* server_type = nullptr;

bool check_callable(PyObject* value, const char* what, bool optional) {
  if (PyCallable_Check(value) || (optional && value == Py_None)) return true;
  PyErr_Format(PyExc_TypeError, "%s must be callable, not %.100s", what, Py_TYPE(value)->tp_name);
  return false;
}

// _make_server(handler, start_tls, report, options) -> _Server
PyObject* make_server(PyObject*, PyObject* const* value, Py_ssize_t count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "_make_server() takes 4 arguments");
    return nullptr;
  }
  if (!check_callable(value[0], "handler", false) || !check_callable(value[1], "start_tls", true) ||
      !check_callable(value[2], "report", true))
    return nullptr;
  if (!PyDict_Check(value[3])) {
    PyErr_SetString(PyExc_TypeError, "options must be a dict");
    return nullptr;
  }
  return or_no_memory([&]() -> PyObject* {
    net::ServerOptions options;
    if (!to_options(value[3], options)) return nullptr;
    Ref self = Ref::steal(server_type->tp_alloc(server_type, 0));
    if (!self) return nullptr;
    PyServer& server = as_server(self.get());
    new (&server.server) std::unique_ptr<net::Server>();
    new (&server.paths) std::vector<net::BoundPath>();
    server.handler = Py_NewRef(value[0]);
    server.start_tls = Py_NewRef(value[1]);
    server.report = Py_NewRef(value[2]);
    server.lingers = options.linger.has_value();
    // The C++ server lives in this object, and calls these in serve() only.
    options.report = [&server](const net::ServerReport& report) { tell(server, report); };
    if (server.start_tls != Py_None)
      options.wrap = [&server](std::unique_ptr<net::Stream> stream, const net::ConnectionInfo& info,
                               Deadline deadline) {
        return wrap_connection(server, std::move(stream), info, deadline);
      };
    server.server = std::make_unique<net::Server>(
        net::Server::ConnectionHandler(
            [&server](net::Connection& connection) { handle_connection(server, connection); }),
        std::move(options));
    return self.release();
  });
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  PyServer& server = as_server(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(server.handler);
  Py_VISIT(server.start_tls);
  Py_VISIT(server.report);
  Py_VISIT(server.raised);
  return 0;
}

int clear(PyObject* self) {
  PyServer& server = as_server(self);
  Py_CLEAR(server.handler);
  Py_CLEAR(server.start_tls);
  Py_CLEAR(server.report);
  Py_CLEAR(server.raised);
  return 0;
}

void dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyServer& server = as_server(self);
  if (server.weakrefs) PyObject_ClearWeakRefs(self);
  clear(self);
  server.server.~unique_ptr();
  server.paths.~vector();
  free_instance(self);
}

// ---------------------------------------------------------------- methods

bool check_fresh(const PyServer& server, const char* function) {
  if (!server.served) return true;
  PyErr_Format(PyExc_RuntimeError, "%s() after serve()", function);
  return false;
}

bool check_fiber(const char* function) {
  if (current_g()) return true;
  PyErr_Format(PyExc_RuntimeError, "%s() outside of a fiber", function);
  return false;
}

// listen_on(socket): takes its descriptor, and the name of its file where it has one.
PyObject* listen_on(PyObject* self, PyObject* value) {
  PyServer& server = as_server(self);
  if (!is_socket(value)) {
    PyErr_SetString(PyExc_TypeError, "listen_on() takes a Socket");
    return nullptr;
  }
  if (!check_fiber("serve") || !check_fresh(server, "serve")) return nullptr;
  Socket& listener = as_socket(value);
  return or_no_memory([&]() -> PyObject* {
    server.paths.reserve(server.paths.size() + 1);
    const ParkGuard guard;
    const auto number = listener.fd.release();
    if (!number) return raise(number.error());
    server.paths.push_back(std::move(listener.path));
    listener.close_pending = true;
    const auto bound = server.server->listen_on(net::OwnedFd(*number));
    if (!bound) return raise(bound.error());
    Py_RETURN_NONE;
  });
}

PyObject* serve(PyObject* self, PyObject*) {
  PyServer& server = as_server(self);
  if (!check_fiber("serve") || !check_fresh(server, "serve")) return nullptr;
  server.served = server.serving = true;
  const Ref keep = Ref::share(self);
  return or_no_memory([&]() -> PyObject* {
    struct Ended {
      PyServer& server;
      ~Ended() {
        server.serving = false;
        server.paths.clear();
      }
    } ended{server};
    Result<void> done;
    {
      const ParkGuard guard;
      done = server.server->serve();
    }
    if (!done) return raise(done.error());
    Py_RETURN_NONE;
  });
}

// The seconds that handlers have left, as a deadline; false with an exception set.
bool to_drain(PyObject* value, Deadline& drain) {
  if (value == Py_None) {
    drain = Deadline::never();
    return true;
  }
  double seconds;
  if (!to_seconds(value, "drain", seconds)) return false;
  drain = seconds > 0 ? after_seconds(seconds) : Deadline::now();
  return true;
}

PyObject* begin_stop(PyObject* self, PyObject* value) {
  Deadline drain;
  if (!to_drain(value, drain)) return nullptr;
  as_server(self).server->begin_stop(drain);
  Py_RETURN_NONE;
}

// stop(drain): begin_stop, and waits for the end of serve() where it is running.
PyObject* stop(PyObject* self, PyObject* value) {
  PyServer& server = as_server(self);
  Deadline drain;
  if (!to_drain(value, drain)) return nullptr;
  if (!server.serving) {
    server.server->begin_stop(drain);
    Py_RETURN_NONE;
  }
  if (!check_fiber("stop")) return nullptr;
  const Ref keep = Ref::share(self);
  const ParkGuard guard;
  const auto stopped = server.server->stop(drain);
  if (!stopped) return raise(stopped.error());
  Py_RETURN_NONE;
}

bool put(PyObject* dict, const char* key, std::uint64_t number) {
  const Ref value = Ref::steal(PyLong_FromUnsignedLongLong(number));
  return value && PyDict_SetItemString(dict, key, value.get()) == 0;
}

PyObject* stats(PyObject* self, PyObject*) {
  using net::ServerFault;
  using net::ServerTimeout;
  const net::ServerStats stats = as_server(self).server->stats();
  const Ref out = Ref::steal(PyDict_New());
  const Ref timeouts = Ref::steal(PyDict_New());
  const Ref faults = Ref::steal(PyDict_New());
  if (!out || !timeouts || !faults) return nullptr;
  const bool done =
      put(out.get(), "accepted", stats.accepted) && put(out.get(), "active", stats.active) &&
      put(out.get(), "rejected", stats.rejected) && put(out.get(), "cancelled", stats.cancelled) &&
      put(out.get(), "rejected_peers", stats.rejected_peers) &&
      put(out.get(), "peers", stats.peers) && put(out.get(), "untrusted", stats.untrusted) &&
      put(out.get(), "proxied", stats.proxied) && put(out.get(), "handshakes", stats.handshakes) &&
      put(out.get(), "lingered", stats.lingered) &&
      put(out.get(), "taken_at_stop", stats.taken_at_stop) &&
      put(out.get(), "closed_at_stop", stats.closed_at_stop) &&
      put(timeouts.get(), "handshake", stats.timeout(ServerTimeout::handshake)) &&
      put(timeouts.get(), "first_byte", stats.timeout(ServerTimeout::first_byte)) &&
      put(timeouts.get(), "idle", stats.timeout(ServerTimeout::idle)) &&
      put(timeouts.get(), "head", stats.timeout(ServerTimeout::head)) &&
      put(timeouts.get(), "body", stats.timeout(ServerTimeout::body)) &&
      put(timeouts.get(), "write", stats.timeout(ServerTimeout::write)) &&
      put(faults.get(), "accept", stats.fault(ServerFault::accept)) &&
      put(faults.get(), "no_fiber", stats.fault(ServerFault::no_fiber)) &&
      put(faults.get(), "handler", stats.fault(ServerFault::handler_exception)) &&
      put(faults.get(), "listener", stats.fault(ServerFault::listener)) &&
      put(faults.get(), "proxy_header", stats.fault(ServerFault::proxy_header)) &&
      put(faults.get(), "handshake", stats.fault(ServerFault::handshake)) &&
      put(faults.get(), "notify", stats.fault(ServerFault::notify)) &&
      PyDict_SetItemString(out.get(), "timeouts", timeouts.get()) == 0 &&
      PyDict_SetItemString(out.get(), "faults", faults.get()) == 0;
  return done ? Py_NewRef(out.get()) : nullptr;
}

PyMethodDef methods[] = {
    method("listen_on", &listen_on, METH_O, nullptr),
    method("serve", &serve, METH_NOARGS, nullptr),
    method("begin_stop", &begin_stop, METH_O, nullptr),
    method("stop", &stop, METH_O, nullptr),
    method("stats", &stats, METH_NOARGS, nullptr),
    {},
};

PyMemberDef members[] = {weakref_member(), {}};

PyType_Slot slots[] = {
    slot(Py_tp_doc, const_cast<char*>("What runloom.sync.Server is made of.")),
    slot(Py_tp_traverse, &traverse),
    slot(Py_tp_clear, &clear),
    slot(Py_tp_dealloc, &dealloc),
    slot(Py_tp_methods, static_cast<void*>(methods)),
    slot(Py_tp_members, static_cast<void*>(members)),
    {},
};

PyType_Spec spec = {"runloom_c._Server", sizeof(PyServer), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
                        Py_TPFLAGS_DISALLOW_INSTANTIATION,
                    slots};

PyMethodDef functions[] = {
    method("_make_server", &make_server, METH_FASTCALL, nullptr),
    {},
};

}  // namespace

bool add_server(PyObject* module) {
  server_type = add_type(module, spec);
  return server_type && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
