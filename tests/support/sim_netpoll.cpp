#include "support/sim_netpoll.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "net/poll_desc.hpp"
#include "net/poll_home.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::test {
namespace {

using net::PollDesc;
using net::PollHome;

constexpr std::size_t kPipe = 8 * 1024;  // bytes that a direction holds

// One end of a connection.
struct End {
  std::deque<std::byte> received;
  std::weak_ptr<End> peer;
  bool ended = false;  // nothing more will be received
  bool reset = false;  // the peer closed with our bytes unread
  bool write_ended = false;
  int watched = -1;  // our half of the pair whose other half stands for this end; -1: none
  ~End() {
    if (watched >= 0) ::close(watched);
  }
};

enum class Kind : std::uint8_t { recv, send, accept, connect, poll };

class SimNetpoll;

// An operation in flight. On the stack of its fiber, which does not leave before it has completed.
struct Operation {
  Kind kind;
  PollDesc* desc = nullptr;
  SimNetpoll* ring = nullptr;
  std::span<const iovec> buffers{};
  int flags = 0;
  unsigned directions = 0;  // poll
  std::uint16_t port = 0;   // accept, connect
  bool at_once = false;     // complete at the first look, with EAGAIN if need be
  std::uint32_t delay = 0;  // looks until it may complete
  bool cancel = false;
  bool complete = false;
  ssize_t result = 0;  // or -errno
  detail::WaitToken token{};
};

std::size_t total(std::span<const iovec> buffers) {
  std::size_t size = 0;
  for (const iovec& buffer : buffers)
    size += buffer.iov_len;
  return size;
}

}  // namespace

// ---------------------------------------------------------------- the network

struct SimNetwork::Impl {
  explicit Impl(std::uint64_t seed) : random(seed) {}

  std::uint32_t below(std::size_t bound) {
    return static_cast<std::uint32_t>(random() % static_cast<std::uint32_t>(bound));
  }

  // The end that `desc` stands for; null when it has none. The first look finds an accepted one by
  // its number.
  std::shared_ptr<End> end_of(PollDesc& desc) {
    auto it = ends.find(&desc);
    if (it != ends.end() && it->second.first == desc.generation()) return it->second.second;
    auto fresh = accepted.find(desc.fd);
    if (fresh == accepted.end()) return nullptr;
    auto end = fresh->second;
    accepted.erase(fresh);
    ends[&desc] = {desc.generation(), end};
    return end;
  }

  void close_end(const std::shared_ptr<End>& end) {
    if (auto peer = end->peer.lock()) {
      peer->ended = true;
      if (!end->received.empty()) peer->reset = true;
    }
    end->ended = end->write_ended = true;
    end->peer.reset();
  }

  // Ends whose descriptor was closed before any operation used it.
  void reap_unused() {
    for (auto it = accepted.begin(); it != accepted.end();) {
      pollfd request{it->second->watched, POLLIN, 0};
      if (::poll(&request, 1, 0) == 1) {
        close_end(it->second);
        it = accepted.erase(it);
      } else {
        ++it;
      }
    }
  }

  // True when the operation is over; sets its result.
  bool attempt(Operation& op);
  ssize_t receive(Operation& op, End& end);
  ssize_t transmit(Operation& op, End& end);
  ssize_t take_connection(Operation& op);

  mutable std::mutex mutex;
  std::mt19937_64 random;
  std::list<Operation*> operations;
  std::map<PollDesc*, std::pair<std::uint32_t, std::shared_ptr<End>>> ends;
  std::map<int, std::shared_ptr<End>> accepted;  // by number, until the first look
  std::map<std::uint16_t, std::deque<std::shared_ptr<End>>> backlog;  // by port
  std::vector<SimNetpoll*> rings;
};

ssize_t SimNetwork::Impl::receive(Operation& op, End& end) {
  if (end.reset) {
    end.reset = false;
    end.received.clear();
    return -ECONNRESET;
  }
  if (end.received.empty()) return end.ended ? 0 : -EAGAIN;
  std::size_t count = std::min(total(op.buffers), end.received.size());
  if (count > 1 && below(3) == 0) count = 1 + below(count);  // a short transfer
  std::size_t done = 0;
  for (const iovec& buffer : op.buffers) {
    auto* bytes = static_cast<std::byte*>(buffer.iov_base);
    for (std::size_t i = 0; i < buffer.iov_len && done < count; ++i, ++done)
      bytes[i] = end.received[done];
  }
  if ((op.flags & MSG_PEEK) == 0)
    end.received.erase(end.received.begin(), end.received.begin() + static_cast<long>(count));
  return static_cast<ssize_t>(count);
}

ssize_t SimNetwork::Impl::transmit(Operation& op, End& end) {
  const auto peer = end.peer.lock();
  if (!peer || end.write_ended) return -EPIPE;
  std::size_t count = std::min(total(op.buffers), kPipe - peer->received.size());
  if (count == 0) return -EAGAIN;
  if (count > 1 && below(3) == 0) count = 1 + below(count);
  std::size_t done = 0;
  for (const iovec& buffer : op.buffers) {
    const auto* bytes = static_cast<const std::byte*>(buffer.iov_base);
    for (std::size_t i = 0; i < buffer.iov_len && done < count; ++i, ++done)
      peer->received.push_back(bytes[i]);
  }
  return static_cast<ssize_t>(count);
}

ssize_t SimNetwork::Impl::take_connection(Operation& op) {
  auto& waiting = backlog[op.port];
  if (waiting.empty()) return -EAGAIN;
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
    return -errno;
  auto end = waiting.front();
  waiting.pop_front();
  end->watched = pair[1];
  accepted[pair[0]] = end;
  return pair[0];
}

bool SimNetwork::Impl::attempt(Operation& op) {
  ssize_t result = -EAGAIN;
  if (op.kind == Kind::accept) {
    result = take_connection(op);
  } else if (op.kind == Kind::connect) {
    auto client = std::make_shared<End>();
    auto server = std::make_shared<End>();
    client->peer = server;
    server->peer = client;
    ends[op.desc] = {op.desc->generation(), client};
    backlog[op.port].push_back(server);
    result = 0;
  } else if (auto end = end_of(*op.desc)) {
    if (op.kind == Kind::recv) result = receive(op, *end);
    if (op.kind == Kind::send) result = transmit(op, *end);
    if (op.kind == Kind::poll) {
      const auto peer = end->peer.lock();
      unsigned ready = 0;
      if (!end->received.empty() || end->ended) ready |= net::kRead;
      if (!peer || end->write_ended || peer->received.size() < kPipe) ready |= net::kWrite;
      ready &= op.directions;
      result = ready != 0 ? static_cast<ssize_t>(ready) : -EAGAIN;
    }
  } else {
    result = op.cancel ? -ECANCELED : -ENOTCONN;
  }
  if (result == -EAGAIN && op.cancel) result = -ECANCELED;
  if (result == -EAGAIN && !op.at_once) return false;
  op.result = result;
  op.complete = true;
  return true;
}

// ---------------------------------------------------------------- a hub's end of it

namespace {

class SimNetpoll final : public net::Netpoll, public net::PollHomeOwner {
 public:
  explicit SimNetpoll(SimNetwork::Impl& network)
      : network_(network), home_(new PollHome(*this, Scheduler::current(), false)) {
    std::lock_guard hold(network_.mutex);
    network_.rings.push_back(this);
  }
  ~SimNetpoll() override {
    home_->retire();
    std::lock_guard hold(network_.mutex);
    network_.reap_unused();
    std::erase(network_.rings, this);
  }

  std::string_view name() const noexcept override { return "sim"; }

  // --- Driver ---
  int poll(std::int64_t timeout_ns) override;
  void wake() noexcept override {
    std::lock_guard hold(network_.mutex);
    woken_ = true;
    changed_.notify_all();
  }
  bool wants_poll() const noexcept override { return pending_ != 0; }

  // --- PollHomeOwner: close cancels, on every ring ---
  void forget(PollDesc& desc) noexcept override {
    std::lock_guard hold(network_.mutex);
    for (Operation* op : network_.operations)
      if (op->desc == &desc) op->cancel = true;
    if (auto end = network_.end_of(desc)) network_.close_end(end);
    network_.ends.erase(&desc);
    notify_all();
  }

  // --- the seam ---
  Result<std::size_t> recv(PollDesc& desc, std::span<std::byte> buffer, int flags,
                           Deadline deadline) override {
    const iovec vector{buffer.data(), buffer.size()};
    return transfer(desc, Kind::recv, {&vector, 1}, flags, deadline);
  }
  Result<std::size_t> send(PollDesc& desc, std::span<const std::byte> data, int flags,
                           Deadline deadline) override {
    const iovec vector{const_cast<std::byte*>(data.data()), data.size()};
    return transfer(desc, Kind::send, {&vector, 1}, flags, deadline);
  }
  Result<std::size_t> recvmsg(PollDesc& desc, msghdr& message, int flags,
                              Deadline deadline) override {
    return transfer(desc, Kind::recv, {message.msg_iov, message.msg_iovlen}, flags, deadline);
  }
  Result<std::size_t> sendmsg(PollDesc& desc, const msghdr& message, int flags,
                              Deadline deadline) override {
    return transfer(desc, Kind::send, {message.msg_iov, message.msg_iovlen}, flags, deadline);
  }
  Result<int> accept(PollDesc& desc, sockaddr* peer, socklen_t* peer_size,
                     Deadline deadline) override;
  Result<void> connect(PollDesc& desc, const sockaddr* peer, socklen_t peer_size,
                       Deadline deadline) override;
  Result<std::size_t> read(PollDesc&, std::span<std::byte>, Deadline) override {
    return fail_errno(ENOTSUP);
  }
  Result<std::size_t> write(PollDesc&, std::span<const std::byte>, Deadline) override {
    return fail_errno(ENOTSUP);
  }
  Result<void> shutdown(PollDesc& desc, int how) override;
  Result<unsigned> poll_desc(PollDesc& desc, unsigned directions, Deadline deadline) override;
  Result<unsigned> poll_foreign(int, unsigned, Deadline) override { return fail_errno(ENOTSUP); }

 private:
  Result<std::size_t> transfer(PollDesc& desc, Kind kind, std::span<const iovec> buffers, int flags,
                               Deadline deadline);
  Result<std::size_t> perform(Operation& op, WaitReason reason, Deadline deadline);
  void adopt(PollDesc& desc);
  void notify_all() {
    for (SimNetpoll* ring : network_.rings) {
      ring->woken_ = true;
      ring->changed_.notify_all();
    }
  }

  SimNetwork::Impl& network_;
  PollHome* home_;
  std::size_t pending_ = 0;  // of this ring
  bool woken_ = false;
  std::condition_variable changed_;
};

void SimNetpoll::adopt(PollDesc& desc) {
  std::lock_guard hold(desc.lock);
  if (desc.closed() || desc.home.load(std::memory_order_relaxed)) return;
  home_->add_reference();
  desc.home.store(home_, std::memory_order_release);
}

// Submit, park, reap. A deadline, a cancel and a close do the same: they ask for the operation to
// be cancelled, and whatever comes first decides.
Result<std::size_t> SimNetpoll::perform(Operation& op, WaitReason reason, Deadline deadline) {
  adopt(*op.desc);
  op.ring = this;
  op.at_once = (op.flags & MSG_DONTWAIT) != 0 || deadline == Deadline::now();
  ++pending_;
  {
    std::lock_guard hold(network_.mutex);
    network_.operations.push_back(&op);
    op.delay = network_.below(4) == 0 ? 1 + network_.below(3) : 0;
    // A close that came before this did not find the operation.
    if (op.desc->closed()) op.cancel = true;
    op.token = detail::begin_wait();
  }
  detail::WakeCode ended = detail::kWakePending;
  auto code = detail::wait(op.token, {.reason = reason,
                                      .object = op.desc->shown(),
                                      .deadline = op.at_once ? Deadline::never() : deadline,
                                      .cancellable = !op.at_once,
                                      .external = true});
  if (code != detail::kWakeUser) {
    ended = code;
    std::unique_lock hold(network_.mutex);
    op.cancel = true;
    if (!op.complete) {
      op.token = detail::begin_wait();
      hold.unlock();
      // Only the completion ends this.
      detail::wait(op.token, {.reason = reason, .cancellable = false, .external = true});
    }
  }
  --pending_;
  if (op.result >= 0) return static_cast<std::size_t>(op.result);
  if (op.result == -ECANCELED)
    return fail(op.desc->closed() ? make_error_code(Errc::closed) : detail::wake_error(ended));
  if (op.result == -EAGAIN && (op.flags & MSG_DONTWAIT) == 0) return fail(Errc::timed_out);
  return fail_errno(static_cast<int>(-op.result));
}

Result<std::size_t> SimNetpoll::transfer(PollDesc& desc, Kind kind, std::span<const iovec> buffers,
                                         int flags, Deadline deadline) {
  Operation op{.kind = kind, .desc = &desc, .buffers = buffers, .flags = flags};
  return perform(op, kind == Kind::recv ? WaitReason::io_read : WaitReason::io_write, deadline);
}

Result<int> SimNetpoll::accept(PollDesc& desc, sockaddr* peer, socklen_t* peer_size,
                               Deadline deadline) {
  sockaddr_in local{};
  socklen_t size = sizeof local;
  if (::getsockname(desc.fd, reinterpret_cast<sockaddr*>(&local), &size) != 0)
    return fail(last_errno());
  Operation op{.kind = Kind::accept, .desc = &desc, .port = local.sin_port};
  auto fd = perform(op, WaitReason::io_accept, deadline);
  if (!fd) return Unexpected{fd.error()};
  if (peer) std::memset(peer, 0, *peer_size);
  return static_cast<int>(*fd);
}

Result<void> SimNetpoll::connect(PollDesc& desc, const sockaddr* peer, socklen_t,
                                 Deadline deadline) {
  Operation op{.kind = Kind::connect,
               .desc = &desc,
               .port = reinterpret_cast<const sockaddr_in*>(peer)->sin_port};
  const auto done = perform(op, WaitReason::io_connect, deadline);
  if (!done) return Unexpected{done.error()};
  return {};
}

Result<void> SimNetpoll::shutdown(PollDesc& desc, int how) {
  std::lock_guard hold(network_.mutex);
  const auto end = network_.end_of(desc);
  if (!end) return fail_errno(ENOTCONN);
  if (how != SHUT_RD) {
    end->write_ended = true;
    if (auto peer = end->peer.lock()) peer->ended = true;
  }
  if (how != SHUT_WR) end->ended = true;
  notify_all();
  return {};
}

Result<unsigned> SimNetpoll::poll_desc(PollDesc& desc, unsigned directions, Deadline deadline) {
  Operation op{.kind = Kind::poll, .desc = &desc, .directions = directions};
  const auto ready = perform(op, WaitReason::io_poll, deadline);
  if (!ready) return Unexpected{ready.error()};
  return static_cast<unsigned>(*ready);
}

int SimNetpoll::poll(std::int64_t timeout_ns) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(std::max<std::int64_t>(0, timeout_ns));
  std::unique_lock hold(network_.mutex);
  for (;;) {
    network_.reap_unused();
    std::vector<Operation*> mine;
    for (Operation* op : network_.operations)
      if (op->ring == this) mine.push_back(op);
    std::shuffle(mine.begin(), mine.end(), network_.random);
    std::vector<detail::WaitToken> tokens;
    bool late = false;
    for (Operation* op : mine) {
      // Late: even a cancel, and even what could complete now.
      if (op->delay > 0) {
        --op->delay;
        late = true;
        continue;
      }
      if (!network_.attempt(*op)) continue;
      network_.operations.remove(op);
      tokens.push_back(op->token);
    }
    if (!tokens.empty()) {
      notify_all();  // others may go on now
      woken_ = false;
      hold.unlock();
      for (const auto& token : tokens)
        detail::wake(token, detail::kWakeUser);
      return static_cast<int>(tokens.size());
    }
    if (woken_ || timeout_ns == 0) break;
    if (late) continue;
    if (timeout_ns < 0) {
      changed_.wait(hold, [this] { return woken_; });
    } else if (!changed_.wait_until(hold, end, [this] { return woken_; })) {
      break;
    }
  }
  woken_ = false;
  return 0;
}

}  // namespace

SimNetwork::SimNetwork(std::uint64_t seed) : impl_(std::make_unique<Impl>(seed)) {}
SimNetwork::~SimNetwork() = default;

std::function<std::unique_ptr<Driver>(Hub&)> SimNetwork::driver_maker() {
  return [this](Hub&) { return std::make_unique<SimNetpoll>(*impl_); };
}

std::size_t SimNetwork::in_flight() const {
  std::lock_guard hold(impl_->mutex);
  return impl_->operations.size();
}

}  // namespace runloom::test
