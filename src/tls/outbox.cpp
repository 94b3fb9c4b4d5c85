#include "outbox.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace runloom::tls {

bool ends_the_call_only(std::error_code error) noexcept {
  return error == Errc::timed_out || error == Errc::cancelled || error == Errc::park_forbidden ||
         error == Errc::not_in_fiber;
}

bool Outbox::append(std::span<const std::byte> data) noexcept {
  while (!data.empty()) {
    if (!last_ || last_->room() == 0) {
      Chunk* const chunk = take_chunk(data.size()).release();
      if (!chunk) return false;
      (last_ ? last_->next : first_) = chunk;
      last_ = chunk;
    }
    // A sender may be reading the bytes before these, in the same chunk.
    const std::size_t count = std::min(data.size(), last_->room());
    std::memcpy(last_->data() + last_->end, data.data(), count);
    last_->end += static_cast<std::uint32_t>(count);
    queued_ += count;
    data = data.subspan(count);
  }
  return true;
}

void Outbox::consume(std::size_t count) noexcept {
  sent_ += count;
  while (first_) {
    const std::size_t part = std::min(count, first_->size());
    first_->begin += static_cast<std::uint32_t>(part);
    count -= part;
    if (first_->size() != 0) return;
    const ChunkPtr empty(first_);
    first_ = empty->next;
    if (!first_) last_ = nullptr;
  }
}

void Outbox::drop() noexcept {
  while (first_) {
    const ChunkPtr chunk(first_);
    first_ = chunk->next;
  }
  last_ = nullptr;
}

Result<void> Outbox::flush(std::unique_lock<Mutex>& hold, net::Stream& below, std::uint64_t target,
                           Deadline deadline) {
  while (sent_ < target) {
    if (error_) return Unexpected{error_};
    if (sending_) {
      const auto woken = progress_.wait(hold, deadline);
      // When the sender has left meanwhile, one attempt is ours.
      if (!woken && sending_ && sent_ < target) return woken;
      continue;
    }
    std::array<iovec, 8> buffers;
    std::size_t count = 0;
    for (Chunk* chunk = first_; chunk && count < buffers.size(); chunk = chunk->next)
      buffers[count++] = {chunk->data() + chunk->begin, chunk->size()};
    sending_ = true;
    std::size_t written = 0;
    hold.unlock();
    const auto sent = below.writev_all(std::span(buffers).first(count), deadline, &written);
    hold.lock();
    sending_ = false;
    consume(written);
    if (!sent && !ends_the_call_only(sent.error())) {
      error_ = sent.error();
      drop();
    }
    progress_.notify_all();
    if (!sent && sent_ < target) return sent;
  }
  return {};
}

void Outbox::try_flush(std::unique_lock<Mutex>& hold, net::Stream& below) {
  if (sending_ || error_ || queued_ == sent_) return;
  static_cast<void>(flush(hold, below, queued_, Deadline::now()));
}

}  // namespace runloom::tls
