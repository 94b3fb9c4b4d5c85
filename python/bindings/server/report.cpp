#include <cstdio>
#include <utility>

#include "core/g.hpp"
#include "net/address.hpp"
#include "server/server.hpp"
#include "support/errors.hpp"

namespace runloom::python {
namespace {

const char* name_of(net::ServerFault fault) noexcept {
  using net::ServerFault;
  switch (fault) {
    case ServerFault::accept:
      return "accept";
    case ServerFault::no_fiber:
      return "no_fiber";
    case ServerFault::handler_exception:
      return "handler";
    case ServerFault::listener:
      return "listener";
    case ServerFault::proxy_header:
      return "proxy_header";
    case ServerFault::handshake:
      return "handshake";
    case ServerFault::notify:
      return "notify";
  }
  return "unknown";
}

// The exception of the report; None where there is none.
Ref error_of(PyServer& server, const net::ServerReport& report) {
  if (report.fault == net::ServerFault::handshake && server.raised)
    return Ref::steal(std::exchange(server.raised, nullptr));
  if (report.exception) {
    try {
      std::rethrow_exception(report.exception);
    } catch (const HandlerRaised& raised) {
      return Ref::share(raised.error());
    } catch (...) {
      return Ref::share(Py_None);
    }
  }
  if (!report.error) return Ref::share(Py_None);
  raise(report.error);
  return Ref::steal(take_raised());
}

void print(net::ServerReport report, std::string_view text) {
  report.text = text;
  std::fputs(to_string(report).c_str(), stderr);
}

}  // namespace

HandlerRaised::HandlerRaised(Ref error)
    : text_(std::make_shared<std::string>(text_of(error.get()))) {
  error_ = std::make_shared<Ref>(std::move(error));
}

std::string text_of(PyObject* error) {
  std::string out = Py_TYPE(error)->tp_name;
  const Ref text = Ref::steal(PyObject_Str(error));
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (!utf8) PyErr_Clear();
  if (utf8 && *utf8) out.append(": ").append(utf8);
  return out;
}

void tell(PyServer& server, const net::ServerReport& report) {
  // Some fibers of the server are C++ alone, and run no Python code.
  if (!current_g()) return print(report, report.text);
  const Ref raised = Ref::steal(take_raised());
  const Ref error = error_of(server, report);
  if (server.report != Py_None) {
    const Ref peer = Ref::steal(from_address(report.peer));
    const Ref done = peer ? Ref::steal(PyObject_CallFunction(
                                server.report, "sOsOK", name_of(report.fault), error.get(),
                                std::string(report.text).c_str(), peer.get(),
                                static_cast<unsigned long long>(report.left_out)))
                          : Ref();
    if (!done) PyErr_WriteUnraisable(server.report);
  } else if (report.fault == net::ServerFault::handler_exception && error.get() != Py_None) {
    raise_again(Py_NewRef(error.get()));
    PyErr_WriteUnraisable(server.handler);
  } else {
    print(report, error.get() != Py_None ? text_of(error.get()) : std::string(report.text));
  }
  if (raised) raise_again(Py_NewRef(raised.get()));
}

}  // namespace runloom::python
