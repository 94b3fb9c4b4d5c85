// The types of runloom.sync: each in a file of its own.
#pragma once

#include <Python.h>

namespace runloom::python {

extern PyTypeObject* event_type;

bool add_channel(PyObject* module);    // Chan
bool add_select(PyObject* module);     // select()
bool add_locks(PyObject* module);      // Lock, RLock, Mutex
bool add_event(PyObject* module);      // Event
bool add_semaphore(PyObject* module);  // Semaphore
bool add_condition(PyObject* module);  // Condition

inline bool add_sync(PyObject* module) {
  return add_channel(module) && add_select(module) && add_locks(module) && add_event(module) &&
         add_semaphore(module) && add_condition(module);
}

}  // namespace runloom::python
