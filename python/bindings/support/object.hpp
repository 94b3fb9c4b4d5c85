// Instances of heap types that wrap one C++ object and refer to no Python object.
#pragma once

#include <Python.h>

#include <cstddef>
#include <new>
#include <utility>

#include "structmember.h"
#include "support/types.hpp"

namespace runloom::python {

template <class T>
struct Instance {
  PyObject_HEAD PyObject* weakrefs;
  T value;
};

template <class T>
T& unwrap(PyObject* self) noexcept {
  return reinterpret_cast<Instance<T>*>(self)->value;
}

// A new instance with `value` made of `args`. Null with an exception set on failure.
template <class T, class... Args>
PyObject* make_instance(PyTypeObject* type, Args&&... args) {
  PyObject* self = type->tp_alloc(type, 0);  // zeroed
  if (self) new (&unwrap<T>(self)) T(std::forward<Args>(args)...);
  return self;
}

// tp_dealloc of such a type.
template <class T>
void dealloc_instance(PyObject* self) {
  auto* instance = reinterpret_cast<Instance<T>*>(self);
  if (instance->weakrefs) PyObject_ClearWeakRefs(self);
  instance->value.~T();
  free_instance(self);
}

// How every instance that can be weakly referred to begins.
struct WeakrefHead {
  PyObject_HEAD PyObject* weakrefs;
};
// The tp_members row of such a type.
constexpr PyMemberDef weakref_member() noexcept {
  return {"__weaklistoffset__", T_PYSSIZET, offsetof(WeakrefHead, weakrefs), READONLY, nullptr};
}

}  // namespace runloom::python
