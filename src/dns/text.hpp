// Lines and words of the files that say how names are resolved.
#pragma once

#include <string_view>

namespace runloom::dns {

inline bool is_space(char c) noexcept {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// The next line without its end, taken from the front of `text`; false: there is none.
inline bool next_line(std::string_view& text, std::string_view& line) noexcept {
  if (text.empty()) return false;
  const std::size_t end = text.find('\n');
  line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return true;
}

// The next word, taken from the front; empty: there is none.
inline std::string_view next_word(std::string_view& text) noexcept {
  std::size_t at = 0;
  while (at < text.size() && is_space(text[at]))
    ++at;
  std::size_t end = at;
  while (end < text.size() && !is_space(text[end]))
    ++end;
  const std::string_view word = text.substr(at, end - at);
  text.remove_prefix(end);
  return word;
}

// What stands before the first `#`.
inline std::string_view without_comment(std::string_view line) noexcept {
  return line.substr(0, line.find('#'));
}

}  // namespace runloom::dns
