// Serves the files of a directory to a client, over HTTP/1.1: GET and HEAD, keep-alive and
// pipelining, ranges, a deadline on everything that a client could delay, and an end after the
// answer that is under way when the server stops. The stream may be TLS.
//
// What a path may name is settled by the kernel: it is opened one step at a time below the
// directory, and no step may go up or through a symbolic link.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "http_request.hpp"
#include "runloom/net/buffered.hpp"
#include "runloom/net/connection.hpp"
#include "runloom/net/file.hpp"
#include "runloom/net/tcp_stream.hpp"

namespace http {

using namespace runloom;
using namespace std::literals;

inline constexpr std::size_t kLargestHead = 16 * 1024;
inline constexpr std::size_t kPiece = 256 * 1024;    // of a file, sent within a deadline
inline constexpr std::size_t kInMemory = 64 * 1024;  // of a file that is encrypted
inline constexpr auto kPieceTime = 30s;

// How long a client may take, and what it may still send after the answer to a request that was
// refused.
inline net::ServerOptions server_options() {
  net::ServerOptions options;
  options.timeouts.first_byte = 60s;
  options.timeouts.idle = 60s;
  options.timeouts.head = 10s;
  options.timeouts.write = kPieceTime;
  options.linger = net::ServerOptions::Linger{.time = 2s, .bytes = 64 * 1024 * 1024};
  return options;
}

// Opens what `path` names below `root`, a regular file. Opening waits for nobody: what is no file,
// a FIFO for example, is refused.
inline Result<net::File> open_below(const net::File& root, std::string_view path,
                                    std::uint64_t& size) {
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

inline std::string_view content_type(std::string_view path) {
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

inline std::string date() {
  std::array<char, 64> text;
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  const std::size_t size =
      std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text.data(), size};
}

inline std::string head(std::string_view status, std::string_view type, std::uint64_t size,
                        bool keep_alive, std::string_view more = {}) {
  std::string out = "HTTP/1.1 ";
  out.append(status).append("\r\nDate: ").append(date());
  out.append("\r\nServer: runloom-example\r\nContent-Type: ").append(type);
  out.append("\r\nContent-Length: ").append(std::to_string(size));
  out.append(keep_alive ? "\r\nConnection: keep-alive" : "\r\nConnection: close").append(more);
  return out.append("\r\nX-Content-Type-Options: nosniff\r\n\r\n");
}

// One client.
class Client {
 public:
  // With `tells_address` each file comes with the address of the client, as the server has it.
  Client(net::Connection& stream, const net::File& root, bool tells_address = false)
      : stream_(stream), root_(root), tells_address_(tells_address) {}

  void serve() {
    net::BufferedReader reader(stream_);
    do {
      stream_.await_request(!reader.unread().empty());
      const auto text = reader.read_until("\r\n\r\n", kLargestHead);
      if (!text) {
        if (text.error() == net::ReadErrc::limit_exceeded)
          refuse("431 Request Header Fields Too Large");
        else if (stream_.expired() == net::Connection::Expired::head)
          refuse("408 Request Timeout");
        break;
      }
      stream_.head_done();
      const auto request = parse(*text);
      if (!request) return refuse("400 Bad Request");
      if (request->method != "GET" && request->method != "HEAD")
        return refuse("405 Method Not Allowed", true, "\r\nAllow: GET, HEAD");
      if (request->has_body) return refuse("413 Content Too Large", request->method == "GET");
      // Whether the server stops is settled once: what is announced is kept.
      keep_alive_ = request->keep_alive && !stream_.stopping();
      if (!answer(*request)) return;
    } while (keep_alive_);
  }

 private:
  Result<void> answer(const Request& request) {
    const bool with_body = request.method != "HEAD";
    auto path = percent_decoded(request.path);
    if (!path) return send_error("400 Bad Request", with_body);
    if (path->ends_with('/')) *path += "index.html";
    std::uint64_t size = 0;
    const auto file = open_below(root_, *path, size);
    if (!file) return send_error("404 Not Found", with_body);
    const auto part = part_of(request.range, size);
    std::string more = "\r\nAccept-Ranges: bytes";
    if (tells_address_) more.append("\r\nX-Client: ").append(stream_.info().peer.to_string());
    if (!part) {
      more.append("\r\nContent-Range: bytes */").append(std::to_string(size));
      return send_error("416 Range Not Satisfiable", with_body, more);
    }
    if (!part->is_all) {
      const std::uint64_t last = part->begin + part->size - 1;
      more.append("\r\nContent-Range: bytes ").append(std::to_string(part->begin)).append("-");
      more.append(std::to_string(last)).append("/").append(std::to_string(size));
    }
    const std::string_view status = part->is_all ? "200 OK" : "206 Partial Content";
    const std::string text = head(status, content_type(*path), part->size, keep_alive_, more);
    if (!with_body) return stream_.write_all(net::bytes(text));
    if (net::TcpStream* tcp = stream_.tcp()) return send(*tcp, *file, *part, text);
    return write(*file, *part, text);
  }

  // From the page cache to the socket without a copy. What is on the disk is waited for elsewhere,
  // because a read of it would stop every fiber of the hub.
  static Result<void> send(net::TcpStream& tcp, const net::File& file, Part part,
                           std::string_view text) {
    const std::span<const std::byte> bytes = net::bytes(text);
    const int more = part.size != 0 ? MSG_MORE : 0;
    for (std::size_t sent = 0; sent < bytes.size();) {
      RUNLOOM_TRY(const std::size_t count,
                  tcp.send(bytes.subspan(sent), more, Deadline::after(kPieceTime)));
      sent += count;
    }
    while (part.size != 0) {
      const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(part.size, kPiece));
      RUNLOOM_TRY(const std::size_t count,
                  net::send_file(tcp.fd(), file, static_cast<off_t>(part.begin), wanted,
                                 Deadline::after(kPieceTime)));
      if (auto ok = advance(part, count); !ok) return ok;
    }
    return {};
  }

  // Through memory, because what goes out is encrypted. The memory is there while a file is sent:
  // clients that only keep their connections open hold none.
  Result<void> write(const net::File& file, Part part, std::string_view text) {
    if (part.size == 0) return stream_.write_all(net::bytes(text));
    const std::size_t room = text.size() + std::min<std::uint64_t>(part.size, kInMemory);
    const auto memory = std::make_unique_for_overwrite<std::byte[]>(room);
    // The head goes with the first bytes of the file.
    std::ranges::copy(net::bytes(text), memory.get());
    std::size_t used = text.size();
    while (part.size != 0) {
      const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(part.size, room - used));
      RUNLOOM_TRY(const std::size_t count,
                  file.read_at({memory.get() + used, wanted}, static_cast<off_t>(part.begin)));
      if (auto ok = advance(part, count); !ok) return ok;
      if (auto ok = stream_.write_all({memory.get(), used + count}); !ok) return ok;
      used = 0;
    }
    return {};
  }

  // The file has become shorter than was promised: only a broken connection says so.
  static Result<void> advance(Part& part, std::size_t count) {
    if (count == 0) return fail_errno(EIO);
    part.begin += count;
    part.size -= count;
    return {};
  }

  Result<void> send_error(std::string_view status, bool with_body, std::string_view more = {}) {
    const std::string body = std::string(status) + "\n";
    std::string text = head(status, "text/plain; charset=utf-8", body.size(), keep_alive_, more);
    if (with_body) text += body;
    return stream_.write_all(net::bytes(text));
  }

  // The last answer of a connection, to a client that may still be sending.
  void refuse(std::string_view status, bool with_body = true, std::string_view more = {}) {
    keep_alive_ = false;
    static_cast<void>(send_error(status, with_body, more));
  }

  net::Connection& stream_;
  const net::File& root_;
  const bool tells_address_;
  bool keep_alive_ = true;
};

}  // namespace http
