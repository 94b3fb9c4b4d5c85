#include "tls/tls.hpp"

#include "tls/context.hpp"
#include "tls/socket.hpp"

namespace runloom::python {

bool add_tls(PyObject* module) {
  return add_tls_context(module) && add_tls_socket_type(module);
}

}  // namespace runloom::python
