// DNS messages as bytes, RFC 1035: questions are written here, and names read without trust.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runloom/dns/record.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::dns {

using Bytes = std::span<const std::byte>;

inline constexpr std::size_t kHeaderSize = 12;
inline constexpr std::size_t kMostMessage = 65'535;

// The length-prefixed form of a name in text; a trailing dot changes nothing, "" and "." are the
// root. malformed_name.
Result<std::vector<std::byte>> encode_name(std::string_view text);

struct QuestionOptions {
  bool edns = false;                 // adds an EDNS record that takes answers of kEdnsSize
  bool trust_authenticated = false;  // sets AD, so that the answer may have it
};
inline constexpr std::uint16_t kEdnsSize = 1232;  // fits any path without fragments
// A whole question, with id 0.
Result<std::vector<std::byte>> make_question(std::string_view name, RecordType type,
                                             const QuestionOptions& options = {});
void set_id(std::span<std::byte> message, std::uint16_t id) noexcept;
std::uint16_t message_id(Bytes message) noexcept;  // of at least a header

// Reads from a message, from the front; no read goes beyond its end. Once one has failed all do.
class Reader {
 public:
  explicit Reader(Bytes message, std::size_t at = 0) noexcept : all_(message), at_(at) {}
  bool ok() const noexcept { return ok_; }
  std::size_t at() const noexcept { return at_; }
  std::size_t left() const noexcept { return all_.size() - at_; }
  std::uint8_t u8() noexcept;
  std::uint16_t u16() noexcept;
  std::uint32_t u32() noexcept;
  Bytes bytes(std::size_t count) noexcept;
  std::string text(std::size_t count);
  std::string short_text();  // a length in one byte, then so many
  // A name, compressed or not, as text. Pointers go to the front only, at most 127 of them.
  std::string name();
  void skip_name() noexcept;
  // What follows must not read beyond this offset (names may point before).
  void limit(std::size_t end) noexcept;
  void seek(std::size_t at) noexcept;
  void fail() noexcept { ok_ = false; }

 private:
  bool need(std::size_t count) noexcept;
  Bytes all_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

// The fixed part of a message.
struct Header {
  std::uint16_t id = 0;
  std::uint16_t flags = 0;
  std::array<std::uint16_t, 4> counts{};  // questions, answers, authorities, additionals
  bool is_answer() const noexcept { return (flags & 0x8000) != 0; }
  bool authoritative() const noexcept { return (flags & 0x0400) != 0; }
  bool truncated() const noexcept { return (flags & 0x0200) != 0; }
  bool recursion_available() const noexcept { return (flags & 0x0080) != 0; }
  bool authenticated() const noexcept { return (flags & 0x0020) != 0; }
  int rcode() const noexcept { return flags & 0x000f; }
};
Header read_header(Reader& reader) noexcept;

// Where the question section of a message with exactly one question ends; none: it has no such.
std::optional<std::size_t> question_end(Bytes message) noexcept;

// Names are compared without case, in ASCII only.
bool same_name(std::string_view a, std::string_view b) noexcept;
std::string lower(std::string_view text);

}  // namespace runloom::dns
