// MemoryStream: a Stream that reads from a script and keeps what is written. It never parks: a
// read for which the script has nothing left is the end of the stream, or the error it ends with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "runloom/net/stream.hpp"

namespace runloom::test {

class MemoryStream final : public net::Stream {
 public:
  // One arrival: read_some gives its bytes, in several reads when the buffer is small. An error
  // is given once; the script goes on behind it.
  using Step = std::variant<std::string, std::error_code>;

  MemoryStream() = default;
  explicit MemoryStream(std::deque<Step> script) : script_(std::move(script)) {}

  void add(Step step) { script_.push_back(std::move(step)); }

  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline) override {
    ++reads;
    largest_read = std::max(largest_read, buffer.size());
    if (script_.empty() || buffer.empty()) return std::size_t{0};
    if (auto* error = std::get_if<std::error_code>(&script_.front())) {
      const std::error_code code = *error;
      script_.pop_front();
      return Unexpected{code};
    }
    auto& text = std::get<std::string>(script_.front());
    const std::size_t count = std::min(buffer.size(), text.size());
    std::memcpy(buffer.data(), text.data(), count);
    text.erase(0, count);
    if (text.empty()) script_.pop_front();
    return count;
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline) override {
    written.append(reinterpret_cast<const char*>(data.data()), data.size());
    return data.size();
  }
  Result<void> wait_readable(Deadline) override {
    ++waits;
    if (on_wait) on_wait();
    if (script_.empty()) return {};
    if (auto* error = std::get_if<std::error_code>(&script_.front())) {
      const std::error_code code = *error;
      script_.pop_front();
      return Unexpected{code};
    }
    return {};
  }
  Result<void> shutdown_write() override {
    write_ended = true;
    return {};
  }
  void close() noexcept override { closed = true; }

  std::string written;
  bool write_ended = false;
  bool closed = false;
  int reads = 0;
  int waits = 0;
  std::size_t largest_read = 0;
  std::function<void()> on_wait;  // called when a wait begins

 private:
  std::deque<Step> script_;
};

}  // namespace runloom::test
