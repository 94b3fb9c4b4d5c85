#include "runloom/dns/error.hpp"

#include <netdb.h>

#include <array>

#include "runloom/sched/error.hpp"

namespace runloom::dns {
namespace {

struct Entry {
  DnsErrc code;
  int eai;
  const char* text;
};

// glibc's texts. Of several codes with one EAI_ the first is from_eai's.
constexpr std::array kEntries{
    Entry{DnsErrc::not_found, EAI_NONAME, "Name or service not known"},
    Entry{DnsErrc::no_data, EAI_NODATA, "No address associated with hostname"},
    Entry{DnsErrc::server_failure, EAI_AGAIN,
          "Temporary failure in name resolution (the server failed)"},
    Entry{DnsErrc::refused, EAI_AGAIN, "Temporary failure in name resolution (the server refused)"},
    Entry{DnsErrc::bad_answer, EAI_AGAIN,
          "Temporary failure in name resolution (the answer can't be read)"},
    Entry{DnsErrc::no_answer, EAI_AGAIN,
          "Temporary failure in name resolution (no server answered)"},
    Entry{DnsErrc::unreachable, EAI_AGAIN,
          "Temporary failure in name resolution (no server can be reached)"},
    Entry{DnsErrc::failure, EAI_FAIL, "Non-recoverable failure in name resolution"},
    Entry{DnsErrc::bad_flags, EAI_BADFLAGS, "Bad value for ai_flags"},
    Entry{DnsErrc::family, EAI_FAMILY, "ai_family not supported"},
    Entry{DnsErrc::address_family, EAI_ADDRFAMILY, "Address family for hostname not supported"},
    Entry{DnsErrc::socket_type, EAI_SOCKTYPE, "ai_socktype not supported"},
    Entry{DnsErrc::service, EAI_SERVICE, "Servname not supported for ai_socktype"},
    Entry{DnsErrc::bad_name, EAI_IDN_ENCODE, "Parameter string not correctly encoded"},
    Entry{DnsErrc::memory, EAI_MEMORY, "Memory allocation failure"},
    Entry{DnsErrc::system, EAI_SYSTEM, "System error"},
    Entry{DnsErrc::malformed_name, EAI_NONAME, "Name or service not known (the name is malformed)"},
};

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "dns"; }
  std::string message(int value) const override {
    for (const Entry& entry : kEntries)
      if (static_cast<int>(entry.code) == value) return entry.text;
    return "unknown DNS error";
  }
};

}  // namespace

const std::error_category& dns_category() noexcept {
  static const Category category;
  return category;
}

int eai(std::error_code error) noexcept {
  if (!error) return 0;
  if (error == Errc::timed_out) return EAI_AGAIN;
  if (error.category() != dns_category()) return EAI_SYSTEM;
  for (const Entry& entry : kEntries)
    if (static_cast<int>(entry.code) == error.value()) return entry.eai;
  return EAI_FAIL;
}

std::error_code from_eai(int code) noexcept {
  if (code == 0) return {};
  for (const Entry& entry : kEntries)
    if (entry.eai == code) return entry.code;
  return DnsErrc::failure;
}

std::string explain(std::error_code error, std::string_view name) {
  return std::string(name) + ": " + error.message();
}

}  // namespace runloom::dns
