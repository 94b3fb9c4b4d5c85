#include "net/net.hpp"

#include "net/fd_functions.hpp"
#include "net/file_functions.hpp"
#include "net/served.hpp"
#include "net/socket.hpp"

namespace runloom::python {

bool add_net(PyObject* module) {
  return add_server_connection_type(module) && add_socket_type(module) &&
         add_unix_functions(module) && add_fd_functions(module) && add_file_functions(module);
}

}  // namespace runloom::python
