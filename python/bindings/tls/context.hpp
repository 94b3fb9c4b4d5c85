// What runloom.tls.Context builds its native contexts with. They never change, so the Python class,
// which may be changed, makes a new one for the connections that come after.
#pragma once

#include <Python.h>

#include "runloom/tls/context.hpp"
#include "runloom/tls/session.hpp"

namespace runloom::python {

extern PyTypeObject* native_context_type;
extern PyTypeObject* session_type;

// The context in a _TLSContext; null with TypeError set for anything else.
const tls::Context* to_native_context(PyObject* object);

bool add_tls_context(PyObject* module);

}  // namespace runloom::python
