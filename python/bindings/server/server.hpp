// _Server: the C++ Server with handlers in Python, which runloom.sync.Server is made of.
//
//   server.cpp    the type, and the life of a server
//   options.cpp   its options out of a dict
//   handler.cpp   a connection, from the C++ Server to the Python handler and back
//   report.cpp    faults, told in Python
#pragma once

#include <Python.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "runloom/net/bound_path.hpp"
#include "runloom/net/server.hpp"
#include "support/ref.hpp"

namespace runloom::python {

struct PyServer {
  PyObject_HEAD PyObject* weakrefs;
  PyObject* handler;    // handler(connection)
  PyObject* start_tls;  // start_tls(socket, seconds) -> connection, or None: no TLS
  PyObject* report;     // report(fault, error, text, peer, left_out), or None
  PyObject* raised;     // what start_tls raised, on its way to the report
  std::unique_ptr<net::Server> server;
  std::vector<net::BoundPath> paths;  // of Unix listeners
  bool lingers;
  bool served;   // serve() was called
  bool serving;  // and has not returned

  PyObject* object() noexcept { return reinterpret_cast<PyObject*>(this); }
};

inline PyServer& as_server(PyObject* object) noexcept {
  return *reinterpret_cast<PyServer*>(object);
}

// False with an exception set that names the option.
bool to_options(PyObject* dict, net::ServerOptions& options);

// A Python handler has raised.
class HandlerRaised : public std::exception {
 public:
  explicit HandlerRaised(Ref error);
  const char* what() const noexcept override { return text_->c_str(); }
  PyObject* error() const noexcept { return error_->get(); }

 private:
  std::shared_ptr<Ref> error_;
  std::shared_ptr<std::string> text_;
};
// "ValueError: bad", of any exception object.
std::string text_of(PyObject* error);

// ServerOptions::wrap and the handler. On Python fibers.
Result<std::unique_ptr<net::Stream>> wrap_connection(PyServer& server,
                                                     std::unique_ptr<net::Stream> stream,
                                                     const net::ConnectionInfo& info,
                                                     Deadline deadline);
void handle_connection(PyServer& server, net::Connection& connection);
// ServerOptions::report. On any fiber.
void tell(PyServer& server, const net::ServerReport& report);

bool add_server(PyObject* module);

}  // namespace runloom::python
