// Address::parse and from_sockaddr: any bytes are either refused with a printable reason, or an
// address that reads back as itself.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "runloom/net/address.hpp"
#include "runloom/sched/check.hpp"

using runloom::net::Address;

namespace {

void check_text(std::string_view text) {
  std::string problem;
  const auto address = Address::parse(text, &problem);
  if (!address) {
    const bool printable =
        std::all_of(problem.begin(), problem.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
    RUNLOOM_CHECK(!problem.empty() && printable, "the reason of a refusal is printable");
    return;
  }
  RUNLOOM_CHECK(problem.empty(), "an address has no problem");
  const auto copied = Address::from_sockaddr(address->data(), address->size());
  RUNLOOM_CHECK(copied && *copied == *address && copied->hash() == address->hash(),
                "an address survives the kernel's form");
  if (!address->is_ip()) return;
  const auto again = Address::parse(address->to_string());
  RUNLOOM_CHECK(again && *again == *address, "an address reads back as itself");
}

void check_sockaddr(const std::uint8_t* data, std::size_t size) {
  sockaddr_storage storage{};
  std::memcpy(&storage, data, std::min(size, sizeof storage));
  const auto address =
      Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&storage),
                             static_cast<socklen_t>(std::min(size, sizeof storage)));
  if (!address) return;
  RUNLOOM_CHECK(!address->to_string().empty(), "an address can be shown");
  const auto again = Address::from_sockaddr(address->data(), address->size());
  RUNLOOM_CHECK(again && *again == *address, "an address is stable");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  check_text({reinterpret_cast<const char*>(data), size});
  check_sockaddr(data, size);
  return 0;
}
