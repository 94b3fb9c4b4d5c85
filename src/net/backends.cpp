#include "backends.hpp"

#include <utility>

#include "poll_desc.hpp"
#include "runloom/net/netpoll.hpp"

namespace runloom::net {

class BackendList {
 public:
  void add(Backend& backend) noexcept {
    std::lock_guard hold(mutex);
    backend.next_ = std::exchange(first_, &backend);
  }
  void remove(Backend& backend) noexcept {
    std::lock_guard hold(mutex);
    Backend** link = &first_;
    while (*link != &backend)
      link = &(*link)->next_;
    *link = backend.next_;
  }
  template <class Fn>
  void for_each(Fn&& fn) {
    std::lock_guard hold(mutex);
    for (Backend* each = first_; each; each = each->next_)
      fn(*each);
  }

  std::mutex mutex;

 private:
  Backend* first_ = nullptr;
};

namespace {
constinit BackendList list;
}  // namespace

void Backend::enlist() noexcept {
  list.add(*this);
}

void Backend::delist() noexcept {
  list.remove(*this);
}

std::mutex& Backend::list_mutex() noexcept {
  return list.mutex;
}

void lock_backends(ForkStage stage) noexcept {
  stage == ForkStage::prepare ? list.mutex.lock() : list.mutex.unlock();
}

std::size_t end_waits(int fd, Errc error) {
  const detail::WakeCode code =
      error == Errc::cancelled ? detail::kWakeCancelled : detail::WakeCode{detail::kWakeClosed};
  if (PollDesc* desc = find_desc(fd)) {
    const std::size_t count = wake_waiters(*desc, code);
    leave(*desc);
    return count;
  }
  std::vector<detail::Waiter*> claimed;
  list.for_each([&](Backend& each) { each.claim_foreign(fd, code, claimed); });
  for (detail::Waiter* waiter : claimed)
    detail::schedule(waiter);
  return claimed.size();
}

}  // namespace runloom::net
