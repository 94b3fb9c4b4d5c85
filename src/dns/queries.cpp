#include "queries.hpp"

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <deque>

#include "runloom/dns/error.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/net/netpoll.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::dns {
namespace {

constexpr detail::WakeCode kWakeChange = detail::kWakeUser;
constexpr detail::WakeCode kWakeSocket = detail::kWakeUser + 1;
constexpr detail::WakeCode kWakeAnswered = detail::kWakeUser + 2;

// Equal questions have equal keys: all but the id, the name without case.
std::string key_of(Bytes question, bool exact) {
  std::string key(exact ? "=" : "~");
  key.append(reinterpret_cast<const char*>(question.data()) + 2, question.size() - 2);
  if (exact) return key;
  if (const auto end = question_end(question)) {
    const std::size_t name = kHeaderSize - 2 + 1;
    const std::size_t size = *end - 4 - kHeaderSize;
    key.replace(name, size, lower(std::string_view(key).substr(name, size)));
  }
  return key;
}

short poll_events(unsigned directions) noexcept {
  return static_cast<short>((directions & net::kRead ? POLLIN : 0) |
                            (directions & net::kWrite ? POLLOUT : 0));
}

unsigned poll_ready(const pollfd& polled) noexcept {
  const auto events = static_cast<unsigned>(polled.revents);
  const bool failed = (events & (POLLERR | POLLHUP | POLLNVAL)) != 0;
  return ((events & POLLIN) || failed ? net::kRead : 0u) |
         ((events & POLLOUT) || failed ? net::kWrite : 0u);
}

}  // namespace

struct Queries::Query : Exchange {
  std::string key;
  Wanted* first = nullptr;  // waiters, newest first
};

struct Queries::Flight {
  detail::WaitToken token;
  std::size_t left = 0;
  bool on_fiber = false;
  bool wakes_for_each = false;  // outcome; otherwise for the last
};

namespace {

bool has_records(const Queries::Wanted& wanted) noexcept {
  if (!wanted.outcome || wanted.outcome->error) return false;
  Reader reader(wanted.outcome->message);
  const Header header = read_header(reader);
  return reader.ok() && header.rcode() == 0 && header.counts[1] > 0;
}

}  // namespace

Queries::Queries(const QueriesContext& context) noexcept : context_(context) {}

// c-ares tells the questions that are in flight that their channel ends.
Queries::~Queries() {
  channels_.clear();
}

// ---------------------------------------------------------------- channels

std::error_code Queries::provide_channel(const Config& config) {
  const std::int64_t now = monotonic_ns();
  if (!channels_.empty() && config_generation_ == config.generation &&
      context_.servers.holds(servers_version_, now) && !channels_.back()->used_up())
    return {};
  auto order = context_.servers.order(config.resolv.servers, now);
  ChannelSettings settings;
  settings.servers = std::move(order.servers);
  settings.timeout = context_.options.timeout.count() > 0
                         ? context_.options.timeout
                         : std::chrono::milliseconds(config.resolv.timeout);
  settings.attempts = config.resolv.attempts;
  settings.rotate = config.resolv.rotate;
  settings.use_tcp = config.resolv.use_tcp;
  auto made = Channel::make(settings, context_.counters, context_.servers, context_.sockets);
  if (!made) return made.error();
  // What is idle goes, unless the pump may still be waiting on what was its socket.
  if (!pump_token_) std::erase_if(channels_, [](const auto& old) { return old->in_flight() == 0; });
  channels_.push_back(std::move(*made));
  config_generation_ = config.generation;
  servers_version_ = order.version;
  return {};
}

std::uint64_t Queries::version() const noexcept {
  std::uint64_t sum = channels_.size();
  for (const auto& channel : channels_)
    sum += channel->version();
  return sum;
}

Deadline Queries::next_timeout() const {
  Deadline next;
  for (const auto& channel : channels_)
    next = Deadline::earlier(next, channel->next_timeout());
  return next;
}

// ---------------------------------------------------------------- waiters

void Queries::attach(Wanted& wanted, Flight& flight) {
  wanted.flight = &flight;
  std::string key = key_of(wanted.question, wanted.exact);
  const auto [it, fresh] = queries_.try_emplace(key);
  if (fresh) it->second = std::make_unique<Query>();
  Query& query = *it->second;
  wanted.query = &query;
  wanted.prev = nullptr;
  wanted.next = query.first;
  if (query.first) query.first->prev = &wanted;
  query.first = &wanted;
  ++flight.left;
  ++waiters_;
  if (fresh) {
    query.key = std::move(key);
    query.question = wanted.question;
    query.may_drop_edns = !wanted.exact;
    channels_.back()->send(query);
  } else {
    context_.counters.coalesced.add();
  }
}

void Queries::detach(Wanted& wanted) noexcept {
  if (!wanted.query) return;
  (wanted.prev ? wanted.prev->next : wanted.query->first) = wanted.next;
  if (wanted.next) wanted.next->prev = wanted.prev;
  wanted.query = nullptr;
  --waiters_;
  if (waiters_ == 0) note_change();
}

void Queries::finish(Query& query) {
  auto outcome = std::make_shared<Outcome>();
  outcome->message = std::move(query.answer);
  outcome->error = query.error;
  outcome->refusal = std::move(query.refusal);
  while (Wanted* const wanted = query.first) {
    wanted->outcome = outcome;
    Flight& flight = *wanted->flight;
    detach(*wanted);
    --flight.left;
    if (flight.on_fiber && (flight.left == 0 || flight.wakes_for_each))
      detail::wake(flight.token, kWakeAnswered);
  }
  queries_.erase(query.key);
}

void Queries::deliver() {
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    Exchange* next = nullptr;
    for (Exchange* at = channels_[i]->take_ended(); at; at = next) {
      next = at->next_ended;
      finish(static_cast<Query&>(*at));
    }
  }
}

// A parked pump looks again when its sockets or its deadline are not what it waits for any more, or
// when it is not needed.
void Queries::note_change() noexcept {
  if (!pump_token_) return;
  if (waiters_ == 0 || version() != pump_version_ || next_timeout() < pump_deadline_)
    detail::wake(*pump_token_, kWakeChange);
}

Result<void> Queries::ask(std::span<Wanted> wanted, const Config& config, Deadline deadline,
                          StartPump start_pump, void* arg, const Early* early) {
  if (ended_) return fail(Errc::cancelled);
  if (const auto error = provide_channel(config)) return Unexpected{error};
  Flight flight;
  flight.on_fiber = detail::on_fiber();
  struct Leave {
    Queries& queries;
    std::span<Wanted> wanted;
    ~Leave() {
      for (Wanted& one : wanted)
        queries.detach(one);
    }
  };
  if (!flight.on_fiber) {
    auto waited = [&] {
      const Leave leave{*this, wanted};
      for (Wanted& one : wanted)
        attach(one, flight);
      return wait_on_thread(flight, deadline);
    }();
    retire();
    return waited;
  }
  if (!detail::may_park()) return fail(Errc::park_forbidden);
  if (!pumping_) {
    if (const auto error = start_pump(*this, arg)) return Unexpected{error};
    pumping_ = true;
  }
  const Leave leave{*this, wanted};
  flight.token = detail::begin_wait();
  for (Wanted& one : wanted)
    attach(one, flight);
  flight.wakes_for_each = early != nullptr;
  deliver();
  note_change();
  return wait_on_fiber(wanted, flight, deadline, early);
}

// The wait has been begun. Between two of them nothing is delivered: that is done by fibers of this
// hub.
Result<void> Queries::wait_on_fiber(std::span<Wanted> wanted, Flight& flight, Deadline deadline,
                                    const Early* early) {
  Deadline pause;
  if (early && early->known) pause = Deadline::after(early->delay);
  for (;;) {
    const Deadline until = Deadline::earlier(deadline, pause);
    const detail::WakeCode code = detail::wait(
        flight.token, {.reason = WaitReason::io_poll, .object = this, .deadline = until});
    const bool paused = code == detail::kWakeTimedOut && pause.passed() && !deadline.passed();
    if (code != kWakeAnswered && !paused) return fail(detail::wake_error(code));
    if (flight.left == 0) return {};
    if (paused) {
      early->tell();
      early = nullptr;
      pause = {};
      flight.wakes_for_each = false;
    } else if (early && pause.is_never() &&
               std::any_of(wanted.begin(), wanted.end(), has_records)) {
      pause = Deadline::after(early->delay);
    }
    flight.token = detail::begin_wait();
  }
}

// ---------------------------------------------------------------- the pump

void Queries::after_events() {
  for (const auto& channel : channels_)
    channel->process_timeouts();
  deliver();
  for (const auto& channel : channels_)
    channel->close_retired();
  while (channels_.size() > 1 && channels_.front()->in_flight() == 0)
    channels_.erase(channels_.begin());
}

void Queries::pump() {
  const Shield shield;
  while (waiters_ > 0 && !ended_) {
    const bool parked = wait_for_events();
    after_events();
    // A flood is always ready. Not before what has ended is delivered: others run now.
    if (!parked) this_fiber::yield();
  }
  retire();
  pumping_ = false;
}

// Nobody waits any more, or the scheduler ends: what is in flight ends with its channel. A channel
// without anything in flight has no socket, and may serve again.
void Queries::retire() noexcept {
  for (const auto& channel : channels_)
    if (channel->in_flight() > 0 || ended_) channel->end_all();
  deliver();
  std::unique_ptr<Channel> kept;
  if (!channels_.empty() && channels_.back()->usable()) kept = std::move(channels_.back());
  channels_.clear();
  if (!kept) return;
  kept->close_retired();
  channels_.push_back(std::move(kept));
}

bool Queries::wait_for_events() {
  struct Entry {
    Entry(const detail::WaitToken& token, unsigned directions) noexcept
        : watch{directions}, node(token, kWakeSocket) {
      node.data = &watch;
    }
    net::Watch watch;
    detail::WaitNode node;
    int fd = -1;
    Channel* channel = nullptr;
    bool linked = false;
  };
  auto netpoll = net::Netpoll::current();
  if (!netpoll) {
    ended_ = true;
    return false;
  }
  const detail::WaitToken token = detail::begin_wait();
  std::deque<Entry> entries;
  std::vector<pollfd> polled;
  bool broken = false;
  for (const auto& channel : channels_) {
    for (const Channel::Socket& socket : channel->sockets()) {
      Entry& entry = entries.emplace_back(token, socket.directions);
      entry.fd = socket.fd;
      entry.channel = channel.get();
      entry.linked = static_cast<bool>((*netpoll)->link_foreign(socket.fd, entry.node));
      broken = broken || !entry.linked;
      polled.push_back({socket.fd, poll_events(socket.directions), 0});
    }
  }
  // Linked first, then looked at: an event in between is not lost.
  int ready = ::poll(polled.data(), polled.size(), 0);
  bool look_again = false;
  const bool parks = ready <= 0 && !broken;
  if (!parks) {
    if (!detail::try_abandon(token))
      detail::wait(token, {.reason = WaitReason::io_poll, .cancellable = false});
  } else {
    pump_version_ = version();
    pump_deadline_ = next_timeout();
    pump_token_ = &token;
    const detail::WakeCode code = detail::wait(token, {.reason = WaitReason::io_poll,
                                                       .object = this,
                                                       .deadline = pump_deadline_,
                                                       .external = true});
    pump_token_ = nullptr;
    look_again = code == kWakeSocket || code == kWakeChange;
    if (code == detail::kWakeCancelled || code == detail::kWakeForbidden) ended_ = true;
  }
  for (Entry& entry : entries)
    if (entry.linked) (*netpoll)->unlink_foreign(entry.fd, entry.node);
  if (look_again) ready = ::poll(polled.data(), polled.size(), 0);
  for (std::size_t i = 0; ready > 0 && i < polled.size(); ++i)
    if (const unsigned directions = poll_ready(polled[i]))
      entries[i].channel->process(entries[i].fd, directions);
  return parks;
}

// ---------------------------------------------------------------- OS threads

void Queries::wait_on_poll(Deadline deadline, std::error_code& error) {
  std::vector<pollfd> polled;
  std::vector<Channel*> owners;
  for (const auto& channel : channels_)
    for (const Channel::Socket& socket : channel->sockets()) {
      polled.push_back({socket.fd, poll_events(socket.directions), 0});
      owners.push_back(channel.get());
    }
  const Deadline until = Deadline::earlier(deadline, next_timeout());
  timespec limit{};
  const timespec* timeout = nullptr;
  if (!until.is_never()) {
    const std::int64_t left =
        until.passed() ? 0 : std::max<std::int64_t>(0, until.ns() - monotonic_ns());
    limit.tv_sec = left / 1'000'000'000;
    limit.tv_nsec = left % 1'000'000'000;
    timeout = &limit;
  }
  const auto hooks = detail::thread_wait_hooks();
  void* state = hooks.before ? hooks.before() : nullptr;
  const int ready = ::ppoll(polled.data(), polled.size(), timeout, nullptr);
  const bool interrupted =
      ready < 0 && errno == EINTR && hooks.interrupted && hooks.interrupted(state);
  if (hooks.after) hooks.after(state);
  if (interrupted) error = make_error_code(Errc::cancelled);
  if (ready <= 0) return;
  for (std::size_t i = 0; i < polled.size(); ++i)
    if (const unsigned directions = poll_ready(polled[i]))
      owners[i]->process(polled[i].fd, directions);
}

Result<void> Queries::wait_on_thread(Flight& flight, Deadline deadline) {
  deadline = Deadline::earlier(deadline, detail::enclosing_deadline());
  for (;;) {
    after_events();
    if (flight.left == 0) return {};
    if (auto ok = this_fiber::check_cancelled(); !ok) return ok;
    if (deadline.passed()) return fail(Errc::timed_out);
    std::error_code error;
    wait_on_poll(deadline, error);
    if (error) return Unexpected{error};
  }
}

}  // namespace runloom::dns
