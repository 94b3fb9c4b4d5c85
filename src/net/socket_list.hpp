// The sockets of the handlers that run, to close them when nothing else helps.
#pragma once

#include <cstdint>
#include <mutex>

#include "runloom/net/fd.hpp"
#include "runloom/sched/mutex.hpp"

namespace runloom::net {

class SocketList {
 public:
  // On the handler's fiber, for as long as it runs.
  class Entry {
   public:
    Entry(SocketList& list, const Fd& socket) : list_(list), socket_(socket) {
      const std::lock_guard hold(list_.mutex_);
      next_ = list_.head_;
      if (next_) next_->prev_ = this;
      list_.head_ = this;
      if (list_.closed_) socket_.close();
    }
    ~Entry() {
      const std::lock_guard hold(list_.mutex_);
      (prev_ ? prev_->next_ : list_.head_) = next_;
      if (next_) next_->prev_ = prev_;
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    friend class SocketList;
    SocketList& list_;
    const Fd::Weak socket_;
    Entry* prev_ = nullptr;
    Entry* next_ = nullptr;
  };

  // Those there are, and those that will be added. Returns how many there were.
  std::uint64_t close() {
    const std::lock_guard hold(mutex_);
    closed_ = true;
    std::uint64_t count = 0;
    for (const Entry* entry = head_; entry; entry = entry->next_, ++count)
      entry->socket_.close();
    return count;
  }

 private:
  Mutex mutex_;
  Entry* head_ = nullptr;
  bool closed_ = false;
};

}  // namespace runloom::net
