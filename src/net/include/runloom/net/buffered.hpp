// BufferedReader: lines, delimiters and fixed sizes out of a Stream.
//
// The calls park as the stream's do and are cancel points; one fiber at a time uses a reader. A
// deadline bounds the whole call: a peer that sends a byte now and then does not extend it.
// A call that fails (deadline, cancel, limit, end of the stream) takes no byte away unless it
// says so: what has arrived stays unread, and the call may be repeated.
//
// A reader that waits with nothing unread holds no memory: the buffer is taken when bytes are
// there, and given back when a call finds it drained. 10,000 idle connections cost no buffers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "runloom/net/fd.hpp"
#include "runloom/net/stream.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

enum class ReadErrc {
  end_of_stream = 1,  // the stream ended before what was asked for was whole
  limit_exceeded,     // the delimiter did not come within the limit
};
const std::error_category& read_category() noexcept;
inline std::error_code make_error_code(ReadErrc e) noexcept {
  return {static_cast<int>(e), read_category()};
}

class BufferedReader {
 public:
  static constexpr std::size_t kDefaultCapacity = 16 * 1024;
  static constexpr std::size_t kDefaultLimit = 64 * 1024;

  // Reads ahead at most `capacity` bytes (at least 1), more only where a call asks for more at
  // once. The stream must outlive the reader.
  explicit BufferedReader(Stream& stream, std::size_t capacity = kDefaultCapacity) noexcept
      : stream_(&stream), capacity_(capacity == 0 ? 1 : capacity) {}
  BufferedReader(const BufferedReader&) = delete;
  BufferedReader& operator=(const BufferedReader&) = delete;

  // As Stream::read_some: what is unread first; 0 is the end of the stream.
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline = {});
  // Fills `buffer`. When it fails, ReadErrc::end_of_stream among the reasons, the bytes that had
  // come are in `buffer` and their number in `bytes_read`.
  Result<void> read_exact(std::span<std::byte> buffer, Deadline deadline = {},
                          std::size_t* bytes_read = nullptr);

  // The views that the following calls return are valid until the next call on the reader.

  // Everything up to and including `delimiter` (not empty). Fails with limit_exceeded when that
  // would be more than `limit` bytes, with end_of_stream when the stream ends before it.
  Result<std::string_view> read_until(std::string_view delimiter, std::size_t limit = kDefaultLimit,
                                      Deadline deadline = {});
  // A line without its "\n" or "\r\n"; `limit` counts these. A last line without a "\n" is no
  // line: end_of_stream, and its bytes are unread().
  Result<std::string_view> read_line(std::size_t limit = kDefaultLimit, Deadline deadline = {});
  // All unread bytes, at least `count` of them; takes none. See consume().
  Result<std::string_view> peek(std::size_t count, Deadline deadline = {});

  // Takes `count` unread bytes away; there must be as many. Does not park.
  void consume(std::size_t count) noexcept;
  // Waits until read_some would not park; holds no buffer meanwhile.
  Result<void> wait_readable(Deadline deadline = {});

  // What was read from the stream and not yet taken. Doesn't park.
  std::string_view unread() const noexcept { return {data_.get() + begin_, end_ - begin_}; }
  // Hands the unread bytes over and leaves the reader empty, so that another protocol (TLS) can
  // go on with them and then with the stream.
  std::string take_unread();
  Stream& stream() const noexcept { return *stream_; }
  // Bytes of memory held for the buffer.
  std::size_t held() const noexcept { return size_; }

 private:
  // Room of an empty reader, taken when bytes are there.
  class Late;
  // Reads once more, with room for `wanted` unread bytes, which is more than there are. At least
  // one byte more, or an error.
  Result<void> fill(std::size_t wanted, Deadline deadline);
  bool make_room(std::size_t wanted) noexcept;
  void release() noexcept;

  Stream* stream_;
  std::size_t capacity_;  // bytes read ahead
  std::unique_ptr<char[]> data_;
  std::size_t size_ = 0;   // of data_; 0 without one
  std::size_t begin_ = 0;  // unread: [begin_, end_)
  std::size_t end_ = 0;
};

}  // namespace runloom::net

template <>
struct std::is_error_code_enum<runloom::net::ReadErrc> : std::true_type {};
