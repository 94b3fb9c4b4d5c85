// ProxyParser: any bytes, in pieces of any size, are refused or are a header; how they were cut
// changes nothing; and what it says is what a header written with the same addresses says.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "runloom/net/proxy_protocol.hpp"
#include "runloom/sched/check.hpp"

using runloom::net::ProxyHeader;
using runloom::net::ProxyParser;
using runloom::net::ProxyTlv;
using runloom::net::ProxyTlvs;

namespace {

struct Outcome {
  std::size_t taken = 0;
  bool done = false;
  std::error_code error{};
};

Outcome feed(ProxyParser& parser, std::span<const std::byte> data, std::size_t piece) {
  Outcome out;
  while (!data.empty() && !parser.done()) {
    const auto part = data.first(std::min(piece, data.size()));
    const auto taken = parser.feed(part);
    if (!taken) return {out.taken, false, taken.error()};
    RUNLOOM_CHECK(*taken == part.size() || parser.done(), "a header takes what it is given");
    out.taken += *taken;
    data = data.subspan(*taken);
  }
  out.done = parser.done();
  return out;
}

void check_tlvs(const ProxyParser& parser) {
  ProxyTlvs tlvs(parser.tlvs());
  ProxyTlv tlv;
  std::size_t total = 0;
  while (tlvs.next(tlv))
    total += 3 + tlv.value.size();
  RUNLOOM_CHECK(total == parser.tlvs().size(), "the extensions of a header fill it");
}

void check_written(const ProxyHeader& header) {
  if (!header.has_addresses) return;
  for (const std::string& text : {runloom::net::proxy_v1(header.source, header.destination),
                                  runloom::net::proxy_v2(header.source, header.destination)}) {
    ProxyParser again;
    const auto taken = again.feed(std::as_bytes(std::span(text)));
    RUNLOOM_CHECK(taken && again.done() && *taken == text.size(), "what is written can be read");
    if (again.header().version == 1 && !header.source.is_ip()) continue;  // UNKNOWN
    RUNLOOM_CHECK(again.header().source.port() == header.source.port(), "the port is the same");
    RUNLOOM_CHECK(again.header().source.unix_name() == header.source.unix_name(),
                  "the name is the same");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0] % 32;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  ProxyParser whole, pieces;
  const Outcome one = feed(whole, bytes, bytes.size());
  const Outcome many = feed(pieces, bytes, piece);
  RUNLOOM_CHECK(one.done == many.done && one.error == many.error, "pieces make no difference");
  if (!one.done) return 0;
  RUNLOOM_CHECK(one.taken == many.taken, "a header ends where it ends");
  RUNLOOM_CHECK(whole.header().source == pieces.header().source, "nor for whom it tells of");
  check_tlvs(whole);
  check_written(whole.header());
  return 0;
}
