// Requests of HTTP/1.1, as far as a server of files needs them: the head, and its Range.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace http {

struct Request {
  std::string_view method;
  std::string_view path;   // still percent-encoded, without the query
  std::string_view range;  // the value of Range, when it is to be honoured
  bool keep_alive = true;
  bool has_body = false;
};

inline bool same(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t'))
    text.remove_suffix(1);
  return text;
}

// The text up to `end`, which is taken away with it; all of it when there is none.
inline std::string_view take(std::string_view& text, std::string_view end) {
  const std::size_t at = text.find(end);
  const std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + end.size());
  return head;
}

inline bool lists(std::string_view value, std::string_view token) {
  while (!value.empty()) {
    if (same(trimmed(take(value, ",")), token)) return true;
  }
  return false;
}

// A head with its final empty line. Nothing for what is no HTTP/1.x request.
inline std::optional<Request> parse(std::string_view head) {
  Request request;
  std::string_view line = take(head, "\r\n");
  request.method = take(line, " ");
  std::string_view target = take(line, " ");
  if (request.method.empty() || !target.starts_with('/')) return {};
  if (line != "HTTP/1.1" && line != "HTTP/1.0") return {};
  request.keep_alive = line == "HTTP/1.1";
  request.path = target.substr(0, target.find('?'));

  // What the client has of the file is named by a validator, of which this server gives none: none
  // of them is that of the file.
  bool is_conditional = false;
  while (!head.empty()) {
    line = take(head, "\r\n");
    if (line.empty()) break;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return {};
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (same(name, "Range")) {
      request.range = value;
    } else if (same(name, "If-Range")) {
      is_conditional = true;
    } else if (same(name, "Connection")) {
      if (lists(value, "close")) request.keep_alive = false;
      if (lists(value, "keep-alive")) request.keep_alive = true;
    } else if (same(name, "Transfer-Encoding") || (same(name, "Content-Length") && value != "0")) {
      request.has_body = true;
    }
  }
  if (is_conditional || request.method != "GET") request.range = {};
  return request;
}

inline std::optional<std::string> percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return {};
    const int high = digit(text[i + 1]);
    const int low = digit(text[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return {};  // nor a zero byte
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

// The part of a file that a request wants: all of it, unless it asked otherwise.
struct Part {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  bool is_all = true;
};

inline std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// RFC 9110, 14: "bytes=5-9", "bytes=5-", "bytes=-5". A server may ignore a Range: what is none, and
// several at once, are. Nothing when the file has no byte of it.
inline std::optional<Part> part_of(std::string_view range, std::uint64_t size) {
  const Part all{0, size, true};
  if (take(range, "=") != "bytes" || range.find(',') != std::string_view::npos) return all;
  const std::string_view first = trimmed(take(range, "-"));
  const std::string_view last = trimmed(range);
  const auto from = number(first);
  const auto to = number(last);
  if (first.empty()) {
    if (!to) return all;
    const std::uint64_t count = std::min(*to, size);
    if (count == 0) return {};
    return Part{size - count, count, false};
  }
  if (!from || (!to && !last.empty()) || (to && *to < *from)) return all;
  if (*from >= size) return {};
  return Part{*from, to ? std::min(*to - *from, size - *from - 1) + 1 : size - *from, false};
}

}  // namespace http
