#include "runloom/net/buffered.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "runloom/sched/check.hpp"

namespace runloom::net {
namespace {

class ReadCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "runloom.read"; }
  std::string message(int value) const override {
    switch (static_cast<ReadErrc>(value)) {
      case ReadErrc::end_of_stream:
        return "the stream ended before what was asked for was whole";
      case ReadErrc::limit_exceeded:
        return "the delimiter did not come within the limit";
    }
    return "unknown read error";
  }
};

}  // namespace

const std::error_category& read_category() noexcept {
  static const ReadCategory category;
  return category;
}

Result<std::size_t> BufferedReader::read_some(std::span<std::byte> buffer, Deadline deadline) {
  if (buffer.empty()) return std::size_t{0};
  if (begin_ == end_) {
    // A caller with room enough needs no copy.
    if (buffer.size() >= capacity_) {
      release();
      return stream_->read_some(buffer, deadline);
    }
    if (auto filled = fill(1, deadline); !filled) {
      if (filled.error() == ReadErrc::end_of_stream) return std::size_t{0};
      return Unexpected{filled.error()};
    }
  }
  const std::size_t count = std::min(buffer.size(), end_ - begin_);
  std::memcpy(buffer.data(), data_.get() + begin_, count);
  consume(count);
  return count;
}

Result<void> BufferedReader::read_exact(std::span<std::byte> buffer, Deadline deadline,
                                        std::size_t* bytes_read) {
  std::size_t done = 0;
  std::error_code error;
  while (done < buffer.size() && !error) {
    // Each transfer makes an attempt even past the deadline.
    if (done != 0 && deadline.passed()) {
      error = Errc::timed_out;
      break;
    }
    auto count = read_some(buffer.subspan(done), deadline);
    if (!count) {
      error = count.error();
    } else if (*count == 0) {
      error = ReadErrc::end_of_stream;
    } else {
      done += *count;
    }
  }
  if (bytes_read) *bytes_read = done;
  if (error) return Unexpected{error};
  return {};
}

Result<std::string_view> BufferedReader::read_until(std::string_view delimiter, std::size_t limit,
                                                    Deadline deadline) {
  RUNLOOM_CHECK(!delimiter.empty(), "read_until needs a delimiter");
  std::size_t searched = 0;  // no delimiter begins before it; bytes are looked at once
  for (bool filled = false;; filled = true) {
    const std::string_view have = unread().substr(0, limit);
    const std::size_t at = have.find(delimiter, searched);
    if (at != std::string_view::npos) {
      begin_ += at + delimiter.size();
      return have.substr(0, at + delimiter.size());
    }
    if (have.size() == limit) return fail(make_error_code(ReadErrc::limit_exceeded));
    searched = have.size() < delimiter.size() ? 0 : have.size() - delimiter.size() + 1;
    if (filled && deadline.passed()) return fail(Errc::timed_out);
    if (auto more = fill(have.size() + 1, deadline); !more) return Unexpected{more.error()};
  }
}

Result<std::string_view> BufferedReader::read_line(std::size_t limit, Deadline deadline) {
  auto line = read_until("\n", limit, deadline);
  if (!line) return line;
  line->remove_suffix(1);
  if (line->ends_with('\r')) line->remove_suffix(1);
  return line;
}

Result<std::string_view> BufferedReader::peek(std::size_t count, Deadline deadline) {
  for (bool filled = false; end_ - begin_ < count; filled = true) {
    if (filled && deadline.passed()) return fail(Errc::timed_out);
    if (auto more = fill(count, deadline); !more) return Unexpected{more.error()};
  }
  return unread();
}

void BufferedReader::consume(std::size_t count) noexcept {
  RUNLOOM_CHECK(count <= end_ - begin_, "consumed more than was unread");
  begin_ += count;
  if (begin_ == end_) release();
}

Result<void> BufferedReader::wait_readable(Deadline deadline) {
  if (begin_ < end_) return {};
  release();
  return stream_->wait_readable(deadline);
}

std::string BufferedReader::take_unread() {
  std::string out(unread());
  consume(out.size());
  return out;
}

class BufferedReader::Late final : public RecvBuffer {
 public:
  Late(BufferedReader& reader, std::size_t wanted) noexcept : reader_(reader), wanted_(wanted) {}
  std::span<std::byte> take() noexcept override {
    if (!reader_.make_room(wanted_)) return {};
    return std::as_writable_bytes(std::span(reader_.data_.get(), reader_.size_));
  }
  std::size_t room() const noexcept override { return std::max(reader_.capacity_, wanted_); }
  void give_back(std::ptrdiff_t count) noexcept override {
    if (count > 0) {
      reader_.end_ = static_cast<std::size_t>(count);
    } else {
      const int keep = errno;
      reader_.release();
      errno = keep;
    }
  }

 private:
  BufferedReader& reader_;
  const std::size_t wanted_;
};

Result<void> BufferedReader::fill(std::size_t wanted, Deadline deadline) {
  Result<std::size_t> count = std::size_t{0};
  if (begin_ == end_) {
    release();
    Late late(*this, wanted);
    count = stream_->read_late(late, deadline);
  } else {
    if (!make_room(wanted)) return fail_errno(ENOMEM);
    const std::span room(data_.get() + end_, size_ - end_);
    count = stream_->read_some(std::as_writable_bytes(room), deadline);
    if (count) end_ += *count;
  }
  if (!count) return Unexpected{count.error()};
  if (*count == 0) return fail(make_error_code(ReadErrc::end_of_stream));
  return {};
}

bool BufferedReader::make_room(std::size_t wanted) noexcept {
  const std::size_t have = end_ - begin_;
  if (wanted > size_) {
    // Doubled, so that a long line is not copied again for each piece of it.
    const std::size_t grown = std::max({capacity_, wanted, 2 * size_});
    std::unique_ptr<char[]> memory(new (std::nothrow) char[grown]);
    if (!memory) return false;
    if (have > 0) std::memcpy(memory.get(), data_.get() + begin_, have);
    data_ = std::move(memory);
    size_ = grown;
  } else if (begin_ + wanted > size_ || (begin_ > 0 && size_ - end_ < size_ / 4)) {
    // The second case: a read into the last few bytes would cost a system call for little.
    std::memmove(data_.get(), data_.get() + begin_, have);
  } else {
    return true;
  }
  begin_ = 0;
  end_ = have;
  return true;
}

void BufferedReader::release() noexcept {
  data_.reset();
  begin_ = end_ = size_ = 0;
}

}  // namespace runloom::net
