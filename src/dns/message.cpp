#include "message.hpp"

#include <algorithm>
#include <cstring>

#include "runloom/dns/error.hpp"

namespace runloom::dns {
namespace {

constexpr std::size_t kMostName = 255;  // encoded, with the root
constexpr std::size_t kMostLabel = 63;
constexpr int kMostPointers = 127;  // a name has no more labels

void put16(std::vector<std::byte>& out, unsigned value) {
  out.push_back(static_cast<std::byte>(value >> 8));
  out.push_back(static_cast<std::byte>(value));
}

bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}

char to_lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

void append_label(std::string& text, Bytes label) {
  if (!text.empty()) text += '.';
  for (const std::byte b : label) {
    const auto c = static_cast<unsigned char>(b);
    if (c == '.' || c == '\\') {
      text += '\\';
      text += static_cast<char>(c);
    } else if (c > 0x20 && c < 0x7f) {
      text += static_cast<char>(c);
    } else {
      text += '\\';
      text += static_cast<char>('0' + c / 100);
      text += static_cast<char>('0' + c / 10 % 10);
      text += static_cast<char>('0' + c % 10);
    }
  }
}

// Walks a name and calls label(bytes) for each; returns where the name ends in the message (behind
// the first pointer, if it has one), none when it is broken.
template <class Label>
std::optional<std::size_t> walk_name(Bytes all, std::size_t at, std::size_t end, Label&& label) {
  std::optional<std::size_t> behind;
  std::size_t size = 1;
  int pointers = 0;
  std::size_t earliest = at;  // a pointer goes before the part that it ends
  for (;;) {
    if (at >= end) return std::nullopt;
    const auto length = static_cast<std::size_t>(all[at]);
    if (length >= 0xc0) {
      if (at + 2 > end || ++pointers > kMostPointers) return std::nullopt;
      const std::size_t target = (length & 0x3f) << 8 | static_cast<std::size_t>(all[at + 1]);
      if (!behind) behind = at + 2;
      if (target >= earliest) return std::nullopt;
      earliest = at = target;
      end = all.size();
      continue;
    }
    if (length > kMostLabel) return std::nullopt;
    if (length == 0) return behind ? behind : at + 1;
    if (at + 1 + length > end) return std::nullopt;
    size += 1 + length;
    if (size > kMostName) return std::nullopt;
    label(all.subspan(at + 1, length));
    at += 1 + length;
  }
}

}  // namespace

Result<std::vector<std::byte>> encode_name(std::string_view text) {
  std::vector<std::byte> out;
  out.reserve(text.size() + 2);
  std::size_t at = 0;
  if (text == ".") text = {};
  while (at < text.size()) {
    const std::size_t length_at = out.size();
    out.push_back(std::byte{0});
    for (; at < text.size() && text[at] != '.'; ++at) {
      unsigned c = static_cast<unsigned char>(text[at]);
      if (c == 0) return fail(DnsErrc::malformed_name);
      if (c == '\\') {
        if (at + 1 == text.size()) return fail(DnsErrc::malformed_name);
        if (is_digit(text[at + 1])) {
          if (at + 3 >= text.size() || !is_digit(text[at + 2]) || !is_digit(text[at + 3]))
            return fail(DnsErrc::malformed_name);
          c = static_cast<unsigned>((text[at + 1] - '0') * 100 + (text[at + 2] - '0') * 10 +
                                    (text[at + 3] - '0'));
          if (c > 255) return fail(DnsErrc::malformed_name);
          at += 3;
        } else {
          c = static_cast<unsigned char>(text[++at]);
        }
      }
      out.push_back(static_cast<std::byte>(c));
    }
    const std::size_t length = out.size() - length_at - 1;
    if (length == 0 || length > kMostLabel) return fail(DnsErrc::malformed_name);
    out[length_at] = static_cast<std::byte>(length);
    ++at;  // the dot, or the end
  }
  out.push_back(std::byte{0});
  if (out.size() > kMostName) return fail(DnsErrc::malformed_name);
  return out;
}

Result<std::vector<std::byte>> make_question(std::string_view name, RecordType type,
                                             const QuestionOptions& options) {
  RUNLOOM_TRY(const auto encoded, encode_name(name));
  std::vector<std::byte> out;
  out.reserve(kHeaderSize + encoded.size() + 4 + 11);
  put16(out, 0);
  put16(out, 0x0100u | (options.trust_authenticated ? 0x0020u : 0u));  // recursion desired
  put16(out, 1);
  put16(out, 0);
  put16(out, 0);
  put16(out, options.edns ? 1 : 0);
  out.insert(out.end(), encoded.begin(), encoded.end());
  put16(out, static_cast<unsigned>(type));
  put16(out, 1);  // IN
  if (options.edns) {
    out.push_back(std::byte{0});
    put16(out, 41);  // OPT
    put16(out, kEdnsSize);
    put16(out, 0);
    put16(out, 0);
    put16(out, 0);
  }
  return out;
}

void set_id(std::span<std::byte> message, std::uint16_t id) noexcept {
  message[0] = static_cast<std::byte>(id >> 8);
  message[1] = static_cast<std::byte>(id);
}

std::uint16_t message_id(Bytes message) noexcept {
  return static_cast<std::uint16_t>(static_cast<unsigned>(message[0]) << 8 |
                                    static_cast<unsigned>(message[1]));
}

// ---------------------------------------------------------------- Reader

bool Reader::need(std::size_t count) noexcept {
  if (ok_ && left() < count) ok_ = false;
  return ok_;
}

std::uint8_t Reader::u8() noexcept {
  if (!need(1)) return 0;
  return static_cast<std::uint8_t>(all_[at_++]);
}

std::uint16_t Reader::u16() noexcept {
  if (!need(2)) return 0;
  const std::uint16_t value = message_id(all_.subspan(at_));
  at_ += 2;
  return value;
}

std::uint32_t Reader::u32() noexcept {
  const std::uint32_t high = u16();
  return high << 16 | u16();
}

Bytes Reader::bytes(std::size_t count) noexcept {
  if (!need(count)) return {};
  const Bytes taken = all_.subspan(at_, count);
  at_ += count;
  return taken;
}

std::string Reader::text(std::size_t count) {
  const Bytes taken = bytes(count);
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

std::string Reader::short_text() {
  return text(u8());
}

std::string Reader::name() {
  std::string text;
  if (!ok_) return text;
  const auto behind =
      walk_name(all_, at_, all_.size(), [&](Bytes label) { append_label(text, label); });
  if (!behind) {
    ok_ = false;
    return {};
  }
  at_ = *behind;
  if (text.empty()) text.push_back('.');  // an assignment makes gcc 12 warn of nothing (-Wrestrict)
  return text;
}

void Reader::skip_name() noexcept {
  if (!ok_) return;
  const auto behind = walk_name(all_, at_, all_.size(), [](Bytes) {});
  if (behind) at_ = *behind;
  ok_ = behind.has_value();
}

void Reader::limit(std::size_t end) noexcept {
  if (end < at_ || end > all_.size()) {
    ok_ = false;
    return;
  }
  all_ = all_.first(end);
}

void Reader::seek(std::size_t at) noexcept {
  if (at > all_.size()) {
    ok_ = false;
    return;
  }
  at_ = at;
}

Header read_header(Reader& reader) noexcept {
  Header header;
  header.id = reader.u16();
  header.flags = reader.u16();
  for (auto& count : header.counts)
    count = reader.u16();
  return header;
}

std::optional<std::size_t> question_end(Bytes message) noexcept {
  Reader reader(message);
  const Header header = read_header(reader);
  if (!reader.ok() || header.counts[0] != 1) return std::nullopt;
  reader.skip_name();
  reader.u32();
  if (!reader.ok()) return std::nullopt;
  return reader.at();
}

bool same_name(std::string_view a, std::string_view b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return to_lower(x) == to_lower(y); });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    c = to_lower(c);
  return out;
}

}  // namespace runloom::dns
