// The sockets of the handlers that run, to close them when nothing else helps, and the connections
// that may be waiting for a further request when the server stops.
#pragma once

#include <cstdint>
#include <mutex>

#include "runloom/net/connection.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/sched/mutex.hpp"

namespace runloom::net {

class SocketList {
 public:
  // On the handler's fiber, for as long as it runs.
  class Entry {
   public:
    Entry(SocketList& list, const Fd& socket, Connection* connection = nullptr)
        : list_(list), socket_(socket), connection_(connection) {
      if (connection_) {
        connection_->entry_ = this;
        connection_->follow_ = [](void* self, const Fd& other) {
          static_cast<Entry*>(self)->follow(other);
        };
      }
      const std::lock_guard hold(list_.mutex_);
      next_ = list_.head_;
      if (next_) next_->prev_ = this;
      list_.head_ = this;
      if (list_.closed_) socket_.close();
    }
    ~Entry() {
      if (connection_) connection_->follow_ = nullptr;
      const std::lock_guard hold(list_.mutex_);
      (prev_ ? prev_->next_ : list_.head_) = next_;
      if (next_) next_->prev_ = prev_;
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    friend class SocketList;
    void follow(const Fd& socket) {
      const std::lock_guard hold(list_.mutex_);
      socket_ = Fd::Weak(socket);
      if (list_.closed_) socket_.close();
    }

    SocketList& list_;
    Fd::Weak socket_;
    Connection* const connection_;  // outlives the entry
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

  // Those that wait between two requests now; the connections see for themselves later on.
  void stop_idle() {
    const std::lock_guard hold(mutex_);
    for (const Entry* entry = head_; entry; entry = entry->next_)
      if (entry->connection_) entry->connection_->clock_->stop_idle();
  }

 private:
  Mutex mutex_;
  Entry* head_ = nullptr;
  bool closed_ = false;
};

}  // namespace runloom::net
