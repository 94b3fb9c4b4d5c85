#include "server_connections.hpp"

#include <mutex>

#include "runloom/sched/scheduler.hpp"

namespace runloom::net {

ConnectionSet::Entry::Entry(ConnectionSet& set, const Fd& socket)
    : set_(set),
      list_(set.lists_[static_cast<std::size_t>(Hub::current()->index())]),
      fiber_(this_fiber::handle()),
      socket_(socket) {
  const std::lock_guard hold(list_.mutex);
  next_ = list_.head;
  if (next_) next_->prev_ = this;
  list_.head = this;
  if (list_.cancelled) cancel();
}

ConnectionSet::Entry::~Entry() {
  const std::lock_guard hold(list_.mutex);
  (prev_ ? prev_->next_ : list_.head) = next_;
  if (next_) next_->prev_ = prev_;
}

void ConnectionSet::Entry::cancel() {
  fiber_.cancel();
  set_.cancelled_.fetch_add(1, std::memory_order_relaxed);
}

void ConnectionSet::open(int hubs) {
  lists_ = std::vector<List>(static_cast<std::size_t>(hubs));
}

void ConnectionSet::begin() noexcept {
  active_.fetch_add(1);
  fibers_.add();
}

void ConnectionSet::end() noexcept {
  if (active_.fetch_sub(1) == 1 && waited_for_.load()) changed_.set();
  fibers_.done();
}

void ConnectionSet::cancel() {
  for (List& list : lists_) {
    const std::lock_guard hold(list.mutex);
    list.cancelled = true;
    for (Entry* entry = list.head; entry; entry = entry->next_)
      entry->cancel();
  }
}

void ConnectionSet::close() {
  for (List& list : lists_) {
    const std::lock_guard hold(list.mutex);
    for (Entry* entry = list.head; entry; entry = entry->next_)
      entry->socket_.close();
  }
}

void ConnectionSet::join() {
  // Under the caller's Shield there is nothing that could fail it but a fiber that may not park.
  while (!fibers_.wait())
    this_fiber::yield();
}

}  // namespace runloom::net
