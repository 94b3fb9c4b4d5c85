// Serves the files of a directory over HTTP/1.1.
//
//     build/release/examples/example_http_static --port 8080 .
//     curl -i http://127.0.0.1:8080/README.md
//
// GET and HEAD, keep-alive and pipelining, a deadline on everything that a client could delay.
// What a path may name is settled by the kernel: it is opened one step at a time below the
// directory, and no step may go up or through a symbolic link.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "example.hpp"
#include "runloom/net/buffered.hpp"
#include "runloom/net/file.hpp"
#include "runloom/net/tcp_stream.hpp"

using namespace runloom;
using namespace std::literals;

namespace {

constexpr std::size_t kLargestHead = 16 * 1024;
constexpr std::size_t kMostDrained = 64 * 1024 * 1024;  // of a body that is refused
constexpr std::size_t kPiece = 256 * 1024;              // of a file, sent within a deadline
// For a whole head from its first byte, for the next request, for each piece of a file: a client
// that sends a byte now and then does not get more.
constexpr auto kHeadTime = 10s;
constexpr auto kIdleTime = 60s;
constexpr auto kPieceTime = 30s;

// ---- requests ----

struct Request {
  std::string_view method;
  std::string_view path;  // still percent-encoded, without the query
  bool keep_alive = true;
  bool has_body = false;
};

bool same(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t'))
    text.remove_suffix(1);
  return text;
}

// The text up to `end`, which is taken away with it; all of it when there is none.
std::string_view take(std::string_view& text, std::string_view end) {
  const std::size_t at = text.find(end);
  const std::string_view head = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + end.size());
  return head;
}

bool lists(std::string_view value, std::string_view token) {
  while (!value.empty()) {
    if (same(trimmed(take(value, ",")), token)) return true;
  }
  return false;
}

// A head with its final empty line. Nothing for what is no HTTP/1.x request.
std::optional<Request> parse(std::string_view head) {
  Request request;
  std::string_view line = take(head, "\r\n");
  request.method = take(line, " ");
  std::string_view target = take(line, " ");
  if (request.method.empty() || !target.starts_with('/')) return {};
  if (line != "HTTP/1.1" && line != "HTTP/1.0") return {};
  request.keep_alive = line == "HTTP/1.1";
  request.path = target.substr(0, target.find('?'));

  while (!head.empty()) {
    line = take(head, "\r\n");
    if (line.empty()) break;
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return {};
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (same(name, "Connection")) {
      if (lists(value, "close")) request.keep_alive = false;
      if (lists(value, "keep-alive")) request.keep_alive = true;
    } else if (same(name, "Transfer-Encoding") || (same(name, "Content-Length") && value != "0")) {
      request.has_body = true;
    }
  }
  return request;
}

std::optional<std::string> percent_decoded(std::string_view text) {
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

// ---- files ----

// Opens what `path` names below `root`, a regular file. Opening waits for nobody: what is no file,
// a FIFO for example, is refused.
Result<net::File> open_below(const net::File& root, std::string_view path, std::uint64_t& size) {
  path.remove_prefix(1);
  net::File directory;
  for (;;) {
    const std::size_t slash = path.find('/');
    const std::string step(path.substr(0, slash));
    if (step.empty() || step == "." || step == "..") return fail_errno(ENOENT);
    const bool last = slash == std::string_view::npos;
    const int flags = O_NOFOLLOW | (last ? O_RDONLY : O_PATH | O_DIRECTORY);
    RUNLOOM_TRY(net::File next, net::File::open_at(directory ? directory : root, step, flags));
    directory = std::move(next);
    if (last) break;
    path.remove_prefix(slash + 1);
  }
  RUNLOOM_TRY(const net::FileStatus status, directory.status());
  if (status.type != net::FileType::regular) return fail_errno(EISDIR);
  size = status.size;
  return directory;
}

std::string_view content_type(std::string_view path) {
  static constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
      {".html", "text/html; charset=utf-8"},
      {".css", "text/css; charset=utf-8"},
      {".js", "text/javascript; charset=utf-8"},
      {".json", "application/json"},
      {".txt", "text/plain; charset=utf-8"},
      {".md", "text/markdown; charset=utf-8"},
      {".svg", "image/svg+xml"},
      {".png", "image/png"},
      {".jpg", "image/jpeg"},
      {".gif", "image/gif"},
      {".ico", "image/x-icon"},
      {".wasm", "application/wasm"},
      {".pdf", "application/pdf"},
  };
  for (const auto& [suffix, type] : kTypes) {
    if (path.ends_with(suffix)) return type;
  }
  return "application/octet-stream";
}

// ---- answers ----

std::string http_date() {
  std::array<char, 64> text;
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  const std::size_t size =
      std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text.data(), size};
}

std::string head(std::string_view status, std::string_view type, std::uint64_t size,
                 bool keep_alive) {
  std::string out = "HTTP/1.1 ";
  out.append(status).append("\r\nDate: ").append(http_date());
  out.append("\r\nServer: runloom-example\r\nContent-Type: ").append(type);
  out.append("\r\nContent-Length: ").append(std::to_string(size));
  out.append(keep_alive ? "\r\nConnection: keep-alive" : "\r\nConnection: close");
  if (status.starts_with("405")) out.append("\r\nAllow: GET, HEAD");
  return out.append("\r\nX-Content-Type-Options: nosniff\r\n\r\n");
}

Result<void> send_error(net::Stream& stream, std::string_view status, bool with_body,
                        bool keep_alive) {
  const std::string body = std::string(status) + "\n";
  std::string answer = head(status, "text/plain; charset=utf-8", body.size(), keep_alive);
  if (with_body) answer += body;
  return stream.write_all(net::bytes(answer), Deadline::after(kPieceTime));
}

// The file goes from the page cache to the socket without a copy. What is on the disk is waited for
// on a thread of the pool, because a read of it would stop every fiber of the hub.
Result<void> send_file(net::TcpStream& stream, const net::File& file, std::uint64_t size,
                       std::string_view head_text, bool with_body) {
  const std::span<const std::byte> bytes = net::bytes(head_text);
  const int more = with_body && size != 0 ? MSG_MORE : 0;
  for (std::size_t sent = 0; sent < bytes.size();) {
    RUNLOOM_TRY(const std::size_t count,
                stream.send(bytes.subspan(sent), more, Deadline::after(kPieceTime)));
    sent += count;
  }
  for (std::uint64_t sent = 0; more != 0 && sent < size;) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(size - sent, kPiece));
    RUNLOOM_TRY(const std::size_t count, net::send_file(stream.fd(), file, static_cast<off_t>(sent),
                                                        wanted, Deadline::after(kPieceTime)));
    // The file has become shorter than was promised: only a broken connection says so.
    if (count == 0) return fail_errno(EIO);
    sent += count;
  }
  return {};
}

Result<void> answer(net::TcpStream& stream, const Request& request, const net::File& root) {
  const bool with_body = request.method != "HEAD";
  auto path = percent_decoded(request.path);
  if (!path) return send_error(stream, "400 Bad Request", with_body, request.keep_alive);
  if (path->ends_with('/')) *path += "index.html";
  std::uint64_t size = 0;
  const auto file = open_below(root, *path, size);
  if (!file) return send_error(stream, "404 Not Found", with_body, request.keep_alive);
  return send_file(stream, *file, size,
                   head("200 OK", content_type(*path), size, request.keep_alive), with_body);
}

// The last answer of a connection, to a client that may still be sending: without the lingering
// close it could lose the answer to a reset.
void refuse(net::Stream& stream, std::string_view status, bool with_body = true) {
  if (send_error(stream, status, with_body, false))
    net::lingering_close(stream, {.bytes = kMostDrained});
}

void serve(net::TcpStream& stream, const net::File& root) {
  net::BufferedReader reader(stream);
  for (;;) {
    if (!reader.peek(1, Deadline::after(kIdleTime))) return;
    const auto text = reader.read_until("\r\n\r\n", kLargestHead, Deadline::after(kHeadTime));
    if (!text) {
      if (text.error() == net::ReadErrc::limit_exceeded)
        refuse(stream, "431 Request Header Fields Too Large");
      else if (text.error() == Errc::timed_out)
        refuse(stream, "408 Request Timeout");
      return;
    }
    const auto request = parse(*text);
    if (!request) return refuse(stream, "400 Bad Request");
    if (request->method != "GET" && request->method != "HEAD")
      return refuse(stream, "405 Method Not Allowed");
    if (request->has_body) return refuse(stream, "413 Content Too Large", request->method == "GET");
    if (!answer(stream, *request, root)) return;
    if (!request->keep_alive) return net::lingering_close(stream);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* usage = "example_http_static [--port N] [--hubs N] [DIRECTORY]";
  const auto arguments = example::parse(argc, argv, usage);
  const std::string directory = arguments.rest.empty() ? "." : arguments.rest[0];
  // Outside of the scheduler this blocks the thread, which has nothing else to do yet.
  const auto root = net::File::open(directory, O_PATH | O_DIRECTORY);
  if (!root) {
    std::fprintf(stderr, "%s: %s\n", directory.c_str(), root.error().message().c_str());
    return 2;
  }
  net::Server server([&](net::TcpStream stream) { serve(stream, *root); });
  return example::run(server, arguments);
}
