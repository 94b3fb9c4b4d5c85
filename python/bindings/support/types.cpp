#include "support/types.hpp"

#include <cstring>

namespace runloom::python {

PyTypeObject* add_type(PyObject* module, PyType_Spec& spec) {
  PyObject* type = PyType_FromModuleAndSpec(module, &spec, nullptr);
  if (!type) return nullptr;
  const char* name = std::strrchr(spec.name, '.');
  if (PyModule_AddObjectRef(module, name ? name + 1 : spec.name, type) < 0) {
    Py_DECREF(type);
    return nullptr;
  }
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace runloom::python
