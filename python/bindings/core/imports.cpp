#include "core/imports.hpp"

#include "core/g.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"
#include "sync/lock.hpp"

namespace runloom::python {
namespace {

// A fiber's is negative, so that it is no thread's.
PyObject* get_ident(PyObject*, PyObject*) {
  const G* g = current_g();
  if (g) return PyLong_FromLongLong(-static_cast<long long>(g->id));
  return PyLong_FromUnsignedLong(PyThread_get_thread_ident());
}

PyMethodDef functions[] = {
    method("get_ident", &get_ident, METH_NOARGS,
           "get_ident($module, /)\n--\n\nA number of the running fiber or thread."),
    {},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "runloom_c._import_locks",
                          "What importlib takes for the module _thread.",
                          -1,
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace

bool guard_imports() {
  const Ref importlib = Ref::steal(PyImport_ImportModule("_frozen_importlib"));
  if (!importlib) return false;
  const Ref locks = Ref::steal(PyModule_Create(&definition));
  return locks &&
         PyModule_AddObjectRef(locks.get(), "allocate_lock",
                               reinterpret_cast<PyObject*>(lock_type)) == 0 &&
         PyModule_AddObjectRef(locks.get(), "RLock", reinterpret_cast<PyObject*>(rlock_type)) ==
             0 &&
         PyObject_SetAttrString(importlib.get(), "_thread", locks.get()) == 0;
}

}  // namespace runloom::python
