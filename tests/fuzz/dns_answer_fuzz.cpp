// Answers of name servers: any bytes are refused or read, within their bounds; names that were read
// can be asked for, and are read back as they were.
#include <cstdint>
#include <span>
#include <string>

#include "dns/cache.hpp"
#include "dns/message.hpp"
#include "runloom/dns/record.hpp"
#include "runloom/sched/check.hpp"

using namespace runloom;

namespace {

void check_name(const std::string& name) {
  const auto encoded = dns::encode_name(name);
  RUNLOOM_CHECK(encoded, "a name that was read can be written");
  dns::Reader reader(*encoded);
  RUNLOOM_CHECK(reader.name() == name && reader.ok() && reader.left() == 0,
                "a name that was written is read as it was");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = std::as_bytes(std::span(data, size));
  const auto end = dns::question_end(message);
  RUNLOOM_CHECK(!end || *end <= size, "a question ends in its message");
  const auto answer = dns::parse_answer(message);
  if (!answer) return 0;
  (void)dns::lifetime(*answer);
  if (!answer->name.empty()) check_name(answer->name);
  for (const auto* section : {&answer->answers, &answer->authorities, &answer->additionals})
    for (const dns::Record& record : *section) {
      check_name(record.name);
      RUNLOOM_CHECK(!dns::to_string(record).empty(), "a record has a text");
    }
  return 0;
}
