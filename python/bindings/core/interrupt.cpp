#include "core/interrupt.hpp"

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/g.hpp"
#include "core/home.hpp"
#include "core/introspect.hpp"
#include "net/fd_argument.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// Lets every parked fiber that `chosen` names raise OSError(err) out of its wait; how many.
template <class Chosen>
PyObject* end_waits(int err, Chosen&& chosen) {
  return or_no_memory([&]() -> PyObject* {
    // In two steps: making an exception may run the collector.
    std::vector<Ref> found;
    for (Home* home = first_home(); home; home = home->next) {
      for (const FiberInfo& info : home->scheduler.fibers()) {
        auto* local = static_cast<FiberLocal*>(info.local);
        if (local && local->g && std::string_view(info.state) == "parked" && chosen(info))
          found.push_back(Ref::share(local->g->object()));
      }
    }
    Py_ssize_t count = 0;
    for (const Ref& each : found) {
      G& g = *reinterpret_cast<G*>(each.get());
      PyObject* error = PyObject_CallFunction(PyExc_OSError, "is", err, std::strerror(err));
      if (!error) return nullptr;
      if (g.done() || !g.home || &g == current_g()) {
        Py_DECREF(error);
        continue;
      }
      interrupt_g(g, error);
      ++count;
    }
    return PyLong_FromSsize_t(count);
  });
}

PyObject* end_waits_on(PyObject* descriptor, int err) {
  int fd;
  if (!to_fd(descriptor, fd)) return nullptr;
  return end_waits(err, [fd](const FiberInfo& info) {
    return waits_on_descriptor(info.reason) && reinterpret_cast<std::intptr_t>(info.object) == fd;
  });
}

PyObject* netpoll_cancel_fd(PyObject*, PyObject* descriptor) {
  return end_waits_on(descriptor, ECANCELED);
}

PyObject* netpoll_unregister(PyObject*, PyObject* descriptor) {
  return end_waits_on(descriptor, EBADF);
}

PyObject* cancel_all_parked(PyObject*, PyObject*) {
  return end_waits(ECANCELED, [](const FiberInfo&) { return true; });
}

PyMethodDef functions[] = {
    method(
        "netpoll_cancel_fd", &netpoll_cancel_fd, METH_O,
        "netpoll_cancel_fd($module, fd, /)\n--\n\n"
        "Let every fiber that waits for a descriptor raise OSError(ECANCELED); return how many."),
    method("netpoll_unregister", &netpoll_unregister, METH_O,
           "netpoll_unregister($module, fd, /)\n--\n\n"
           "The same with OSError(EBADF), for who closes a descriptor behind runloom's back."),
    method("cancel_all_parked", &cancel_all_parked, METH_NOARGS,
           "cancel_all_parked($module, /)\n--\n\n"
           "Let every fiber that waits raise OSError(ECANCELED), once; return how many."),
    {},
};

}  // namespace

bool add_interrupt_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
