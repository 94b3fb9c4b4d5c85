// What a name lookup can fail with, beside Errc::cancelled, timed_out (the caller's own deadline),
// park_forbidden, and errno codes.
#pragma once

#include <string>
#include <string_view>
#include <system_error>

namespace runloom::dns {

enum class DnsErrc {
  // The name is known not to exist, or the arguments name nothing (getaddrinfo(3)'s EAI_NONAME).
  not_found = 1,
  // The name exists, but has nothing of the kind that was asked for (EAI_NODATA).
  no_data,
  // Every server failed (SERVFAIL) or refused, or said what can't be read; or none answered; or
  // none could be reached. Another try may succeed (EAI_AGAIN).
  server_failure,
  refused,
  bad_answer,
  no_answer,
  unreachable,
  // A failure that another try won't mend (EAI_FAIL): the servers can't serve the question.
  failure,
  // The arguments: flags that don't exist or contradict each other (EAI_BADFLAGS), a family that
  // is not supported (EAI_FAMILY), an address of another family (EAI_ADDRFAMILY), a socket type
  // that is not supported (EAI_SOCKTYPE), a service that the type doesn't know (EAI_SERVICE), a
  // name that can't be encoded (EAI_IDN_ENCODE).
  bad_flags,
  family,
  address_family,
  socket_type,
  service,
  bad_name,
  // Out of memory (EAI_MEMORY); a system call failed (EAI_SYSTEM).
  memory,
  system,
  // query(): the name can't be sent: an empty label, a label over 63 bytes, a name over 255.
  malformed_name,
};

// Its messages are those of gai_strerror(3), with the particular behind them.
const std::error_category& dns_category() noexcept;
inline std::error_code make_error_code(DnsErrc e) noexcept {
  return {static_cast<int>(e), dns_category()};
}

// The EAI_ code of <netdb.h> that glibc's getaddrinfo would return: 0 for no error; EAI_SYSTEM for
// codes of other categories, EAI_AGAIN for a deadline of the caller's.
int eai(std::error_code error) noexcept;
// The error of an EAI_ code, the nearest one.
std::error_code from_eai(int code) noexcept;

// "www.example.org: Name or service not known".
std::string explain(std::error_code error, std::string_view name);

}  // namespace runloom::dns

template <>
struct std::is_error_code_enum<runloom::dns::DnsErrc> : std::true_type {};
