// What an SSL_CTX is told about sessions.
#pragma once

#include <openssl/ssl.h>

#include "runloom/tls/context.hpp"

namespace runloom::tls {

bool set_sessions(SSL_CTX* context, Role role, const ContextOptions& options) noexcept;

}  // namespace runloom::tls
