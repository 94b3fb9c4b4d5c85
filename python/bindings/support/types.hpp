// Heap types of the extension: one way to make them, one to take their instances apart.
#pragma once

#include <Python.h>

namespace runloom::python {

// Makes the type of `spec` and adds it to `module` under the last part of its name. Null with an
// exception set on failure. The reference is the caller's.
PyTypeObject* add_type(PyObject* module, PyType_Spec& spec);

// The last step of a tp_dealloc: frees the memory, and drops the instance's reference to its type.
inline void free_instance(PyObject* self) noexcept {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// A slot of PyType_Spec.
inline PyType_Slot slot(int id, void* value) noexcept {
  return {id, value};
}
template <class Function>
PyType_Slot slot(int id, Function* function) noexcept {
  return {id, reinterpret_cast<void*>(function)};
}

// A row of a PyMethodDef table; its flags must be those of the function's shape.
template <class Function>
PyMethodDef method(const char* name, Function* function, int flags, const char* doc) noexcept {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), flags, doc};
}

// Functions of METH_FASTCALL | METH_KEYWORDS.
using FastFunction = PyObject*(PyObject* self, PyObject* const* args, Py_ssize_t count,
                               PyObject* names);
inline PyMethodDef fast_method(const char* name, FastFunction* function, const char* doc) noexcept {
  return method(name, function, METH_FASTCALL | METH_KEYWORDS, doc);
}

}  // namespace runloom::python
