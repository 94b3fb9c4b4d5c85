// A line of text in a fixed buffer, written with one write(2): usable in a signal handler.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace runloom::detail {

class Line {
 public:
  explicit Line(int fd) noexcept : fd_(fd) {}
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  Line& text(const char* text) noexcept {
    while (*text && size_ < kMost)
      buffer_[size_++] = *text++;
    return *this;
  }
  // As text, of at most `most` characters.
  Line& text(const char* text, std::size_t most) noexcept {
    for (; most > 0 && *text && size_ < kMost; --most)
      buffer_[size_++] = *text++;
    return *this;
  }
  Line& number(std::uint64_t value) noexcept {
    char digits[20];
    int count = 0;
    do
      digits[count++] = static_cast<char>('0' + value % 10);
    while (value /= 10);
    while (count > 0 && size_ < kMost)
      buffer_[size_++] = digits[--count];
    return *this;
  }
  Line& hex(std::uint64_t value) noexcept {
    int shift = 60;
    while (shift > 0 && (value >> shift) == 0)
      shift -= 4;
    text("0x");
    for (; shift >= 0 && size_ < kMost; shift -= 4)
      buffer_[size_++] = "0123456789abcdef"[(value >> shift) & 15];
    return *this;
  }
  void end() noexcept {
    buffer_[size_++] = '\n';
    [[maybe_unused]] const auto written = ::write(fd_, buffer_, size_);
    size_ = 0;
  }

 private:
  static constexpr std::size_t kMost = 254;
  int fd_;
  std::size_t size_ = 0;
  char buffer_[kMost + 1];
};

}  // namespace runloom::detail
