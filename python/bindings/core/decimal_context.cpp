#include "core/decimal_context.hpp"

#include <Python.h>

#include "support/ref.hpp"

namespace runloom::python {
namespace {

// The module's ContextVar, once the module was imported. It does not show it.
PyObject* variable = nullptr;

// Lets the module set the variable in a context of no consequence, and looks for it there.
bool find_variable(PyObject* module) {
  const Ref getcontext = Ref::steal(PyObject_GetAttrString(module, "getcontext"));
  const Ref context = Ref::steal(PyContext_CopyCurrent());
  if (!getcontext || !context) return false;
  const Ref made = Ref::steal(PyObject_CallMethod(context.get(), "run", "O", getcontext.get()));
  const Ref keys = made ? Ref::steal(PySequence_List(context.get())) : Ref();
  if (!keys) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys.get()); ++i) {
    PyObject* key = PyList_GET_ITEM(keys.get(), i);
    const Ref name = Ref::steal(PyObject_GetAttrString(key, "name"));
    if (!name) return false;
    if (PyUnicode_Check(name.get()) &&
        PyUnicode_CompareWithASCIIString(name.get(), "decimal_context") == 0)
      variable = Py_NewRef(key);
  }
  return true;
}

bool copy_value() {
  PyObject* value;
  if (PyContextVar_Get(variable, nullptr, &value) < 0) return false;
  const Ref inherited = Ref::steal(value);
  if (!inherited) return true;
  const Ref own = Ref::steal(PyObject_CallMethod(inherited.get(), "copy", nullptr));
  return own && Ref::steal(PyContextVar_Set(variable, own.get()));
}

}  // namespace

void own_decimal_context() noexcept {
  if (!variable) {
    PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "_decimal");
    if (!module) return;
    if (!find_variable(module)) PyErr_WriteUnraisable(module);
    if (!variable) return;
  }
  if (!copy_value()) PyErr_WriteUnraisable(variable);
}

}  // namespace runloom::python
