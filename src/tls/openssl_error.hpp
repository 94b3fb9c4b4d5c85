// From OpenSSL's error queue to error codes. The queue belongs to the thread, and so to all fibers
// of a hub: it is emptied before a call and read right after it, with no switch between.
#pragma once

#include <system_error>

#include "runloom/tls/error.hpp"

namespace runloom::tls {

// A code of the queue as an error code; `kind` unless it is an alert, an errno or out of memory.
std::error_code code_of(unsigned long openssl_error, TlsErrc kind) noexcept;
// What the failed call has left in the queue, which is empty afterwards.
std::error_code take_error(TlsErrc kind) noexcept;

}  // namespace runloom::tls
