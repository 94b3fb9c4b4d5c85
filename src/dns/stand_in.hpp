// Stand-ins: what c-ares sees in place of the questions and answers.
//
// c-ares is asked to carry small questions of our making, one for each real one, named by a number
// that is never used twice. Where it sends such a question, the real one goes out; where an answer
// comes in, c-ares gets the head of it and the stand-in's question, without a record. So no version
// of it reads, rewrites, caches or refuses what a server said, or has an opinion on names.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "message.hpp"

namespace runloom::dns {

// Appended to `out`.
void put_stand_in_question(std::vector<std::byte>& out, std::uint16_t id, std::uint32_t number);
// What stands in for `answer`, a message with at least a header, to the question of that number.
void put_stand_in_answer(std::vector<std::byte>& out, Bytes answer, std::uint32_t number);

struct StandIn {
  std::uint16_t id;
  std::uint32_t number;
};
// Reads a question that c-ares sends: ours, with an id that may be its own. None: something else.
std::optional<StandIn> read_stand_in(Bytes message) noexcept;

// Whether a message may be the answer to a question, by its question section, in any case of
// letters. A server that can't serve a question may leave it out.
bool answers(Bytes question, Bytes message) noexcept;

// The question without its records, which are the EDNS one: for servers that don't know EDNS.
Bytes without_records(Bytes question) noexcept;

// The messages of a stream, each with its length in front.
class MessageStream {
 public:
  void append(Bytes bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // The next whole one, valid until the next call of anything here.
  std::optional<Bytes> next();

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};
// Puts the length in front.
void put_framed(std::vector<std::byte>& out, Bytes message);

}  // namespace runloom::dns
