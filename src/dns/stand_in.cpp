#include "stand_in.hpp"

#include <algorithm>

namespace runloom::dns {
namespace {

constexpr std::size_t kDigits = 8;
constexpr std::size_t kNameAt = kHeaderSize;
constexpr std::size_t kSize = kHeaderSize + 1 + kDigits + 1 + 4;

void put16(std::vector<std::byte>& out, unsigned value) {
  out.push_back(static_cast<std::byte>(value >> 8));
  out.push_back(static_cast<std::byte>(value));
}

// Digits a to p: in the name of a host, and never a number.
void put_question(std::vector<std::byte>& out, std::uint32_t number) {
  out.push_back(std::byte{kDigits});
  for (int shift = 28; shift >= 0; shift -= 4)
    out.push_back(static_cast<std::byte>('a' + (number >> shift & 15)));
  out.push_back(std::byte{0});
  put16(out, static_cast<unsigned>(RecordType::a));
  put16(out, 1);  // IN
}

std::string_view text_of(Bytes bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void put_stand_in_question(std::vector<std::byte>& out, std::uint16_t id, std::uint32_t number) {
  put16(out, id);
  put16(out, 0x0100);  // recursion desired
  for (const unsigned count : {1u, 0u, 0u, 0u})
    put16(out, count);
  put_question(out, number);
}

void put_stand_in_answer(std::vector<std::byte>& out, Bytes answer, std::uint32_t number) {
  out.insert(out.end(), answer.begin(), answer.begin() + 4);
  for (const unsigned count : {1u, 0u, 0u, 0u})
    put16(out, count);
  put_question(out, number);
}

std::optional<StandIn> read_stand_in(Bytes message) noexcept {
  if (message.size() < kSize || message[kNameAt] != std::byte{kDigits}) return std::nullopt;
  StandIn found{message_id(message), 0};
  for (const std::byte b : message.subspan(kNameAt + 1, kDigits)) {
    const unsigned digit = static_cast<unsigned>(b) - 'a';
    if (digit > 15) return std::nullopt;
    found.number = found.number << 4 | digit;
  }
  return found;
}

bool answers(Bytes question, Bytes message) noexcept {
  if (message.size() < kHeaderSize) return false;
  Reader reader(message);
  const Header header = read_header(reader);
  if (!header.is_answer()) return false;
  if (header.counts[0] == 0) {
    const int rcode = header.rcode();
    return rcode == 1 || rcode == 2 || rcode == 4 || rcode == 5;
  }
  const auto ours = question_end(question), theirs = question_end(message);
  if (!ours || !theirs || *ours != *theirs) return false;
  // Letters have no case in a name, but the type and the class behind it are numbers.
  const std::size_t size = *ours - kHeaderSize;
  const Bytes a = question.subspan(kHeaderSize, size), b = message.subspan(kHeaderSize, size);
  return same_name(text_of(a.first(size - 4)), text_of(b.first(size - 4))) &&
         std::ranges::equal(a.last(4), b.last(4));
}

Bytes without_records(Bytes question) noexcept {
  return question.first(question_end(question).value_or(question.size()));
}

std::optional<Bytes> MessageStream::next() {
  const auto left = Bytes(bytes_).subspan(at_);
  const std::size_t size = left.size() < 2 ? 0 : message_id(left);
  if (left.size() < 2 || left.size() < 2 + size) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(at_));
    at_ = 0;
    return std::nullopt;
  }
  at_ += 2 + size;
  return left.subspan(2, size);
}

void put_framed(std::vector<std::byte>& out, Bytes message) {
  put16(out, static_cast<unsigned>(message.size()));
  out.insert(out.end(), message.begin(), message.end());
}

}  // namespace runloom::dns
