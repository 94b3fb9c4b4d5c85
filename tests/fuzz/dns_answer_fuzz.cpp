// Answers of name servers: any bytes are refused or read, within their bounds; names that were read
// can be asked for, and are read back as they were. What c-ares gets in their place is whole, and a
// stream gives the same messages however it is cut.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dns/cache.hpp"
#include "dns/message.hpp"
#include "dns/stand_in.hpp"
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

void check_stand_in(dns::Bytes message) {
  (void)dns::read_stand_in(message);
  if (message.size() < dns::kHeaderSize) return;
  std::vector<std::byte> stand_in;
  dns::put_stand_in_answer(stand_in, message, 7);
  RUNLOOM_CHECK(dns::question_end(stand_in) == stand_in.size(), "a stand-in has a question alone");
  const auto end = dns::question_end(message);
  if (end && (static_cast<unsigned>(message[2]) & 0x80) != 0)
    RUNLOOM_CHECK(dns::answers(message, message), "a message answers its own question");
  RUNLOOM_CHECK(dns::without_records(message).size() == end.value_or(message.size()),
                "records are what follows the question");
}

void check_stream(dns::Bytes bytes) {
  const std::size_t cut = bytes.empty() ? 0 : static_cast<std::size_t>(bytes[0]) % bytes.size();
  dns::MessageStream whole, cut_up;
  std::vector<std::byte> from_whole, from_cut_up;
  const auto take = [](dns::MessageStream& stream, std::vector<std::byte>& out) {
    while (const auto message = stream.next())
      dns::put_framed(out, *message);
  };
  whole.append(bytes);
  take(whole, from_whole);
  cut_up.append(bytes.first(cut));
  take(cut_up, from_cut_up);
  cut_up.append(bytes.subspan(cut));
  take(cut_up, from_cut_up);
  RUNLOOM_CHECK(from_whole == from_cut_up, "a stream has its messages whatever its pieces");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = std::as_bytes(std::span(data, size));
  const auto end = dns::question_end(message);
  RUNLOOM_CHECK(!end || *end <= size, "a question ends in its message");
  check_stand_in(message);
  check_stream(message);
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
