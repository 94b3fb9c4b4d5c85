#include "channel.hpp"

#include <ares.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "runloom/dns/error.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/sched/check.hpp"
#include "runloom/sched/fiber.hpp"
#include "socket_table.hpp"

namespace runloom::dns {
namespace {

// A flood must not hold the hub: so many datagrams, and then others have their turn.
constexpr int kMostDatagrams = 64;

// Inside a callback of the calling thread.
thread_local int tl_callbacks = 0;

struct InCallback {
  InCallback() noexcept { ++tl_callbacks; }
  ~InCallback() { --tl_callbacks; }
};

bool init_library() {
  static const bool ready = ::ares_library_init(ARES_LIB_INIT_ALL) == ARES_SUCCESS;
  return ready;
}

}  // namespace

// A call of c-ares, from its begin to its end.
class Channel::Call {
 public:
  explicit Call(Channel& channel) noexcept {
#ifdef RUNLOOM_DEBUG
    RUNLOOM_CHECK(tl_callbacks == 0, "c-ares was called inside one of its callbacks");
#endif
    channel.budget_ = kMostDatagrams;
  }

 private:
  this_fiber::ForbidPark forbid_;
};

// What c-ares calls.
struct AresCallbacks {
  static Channel& of(void* user) noexcept { return *static_cast<Channel*>(user); }

  static void answered(void* user, int status, int timeouts, unsigned char* message, int size) {
    const InCallback in;
    auto& exchange = *static_cast<Exchange*>(user);
    const Bytes answer = message && size > 0
                             ? std::as_bytes(std::span(message, static_cast<std::size_t>(size)))
                             : Bytes();
    exchange.channel->ended(exchange, status, timeouts, answer);
  }

  static void state(void* user, ares_socket_t fd, int readable, int writable) {
    const InCallback in;
    of(user).interest(fd, (readable ? net::kRead : 0u) | (writable ? net::kWrite : 0u));
  }

  static ares_socket_t open(int domain, int type, int protocol, void* user) {
    const InCallback in;
    Channel& channel = of(user);
    const int fd = ::socket(domain, type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);
    if (fd < 0) return ARES_SOCKET_BAD;
    const int on = 1;
    if (type == SOCK_STREAM) {
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      channel.counters_.tcp_connections.add();
    }
    channel.table_.add(fd);
    channel.open_[fd].tcp = type == SOCK_STREAM;
    return fd;
  }

  static int close(ares_socket_t fd, void* user) {
    const InCallback in;
    Channel& channel = of(user);
    channel.open_.erase(fd);
    channel.retired_.push_back(fd);
    ++channel.version_;
    return 0;
  }

  static int connect(ares_socket_t fd, const sockaddr* to, ares_socklen_t size, void* user) {
    const InCallback in;
    Channel& channel = of(user);
    auto peer = net::Address::from_sockaddr(to, size).value_or(net::Address());
    // c-ares knows no scopes: a link-local server is found again by its address.
    if (peer.is_ipv6() && peer.is_link_local())
      for (const net::Address& server : channel.settings_.servers)
        if (server.with_port(0) ==
            net::Address::from_ipv6(reinterpret_cast<const sockaddr_in6*>(to)->sin6_addr, 0,
                                    server.scope_id()))
          peer = server;
    channel.open_[fd].peer = peer;
    if (::connect(fd, peer.data(), peer.size()) == 0) return 0;
    if (errno != EINPROGRESS && errno != EAGAIN) {
      const int failure = errno;
      channel.servers_.silent(peer, monotonic_ns());
      errno = failure;
    }
    return -1;
  }

  static ares_ssize_t receive(ares_socket_t fd, void* buffer, size_t size, int flags,
                              sockaddr* from, ares_socklen_t* from_size, void* user) {
    const InCallback in;
    Channel& channel = of(user);
    const auto it = channel.open_.find(fd);
    if (it == channel.open_.end()) {
      errno = EBADF;
      return -1;
    }
    Channel::OpenSocket& socket = it->second;
    for (;;) {
      if (!socket.tcp && channel.budget_-- <= 0) {
        errno = EAGAIN;
        return -1;
      }
      const ssize_t got = ::recvfrom(fd, buffer, size, flags, from, from_size);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
        const int failure = errno;
        channel.servers_.silent(socket.peer, monotonic_ns());
        errno = failure;
      }
      if (got <= 0) return got;
      if (!socket.tcp &&
          !channel.plausible({static_cast<const std::byte*>(buffer), static_cast<size_t>(got)})) {
        channel.counters_.dropped.add();
        continue;
      }
      socket.asked_at = 0;
      channel.servers_.answered(socket.peer);
      return got;
    }
  }

  static ares_ssize_t send(ares_socket_t fd, const iovec* data, int count, void* user) {
    const InCallback in;
    Channel& channel = of(user);
    if (const auto it = channel.open_.find(fd); it != channel.open_.end())
      if (it->second.asked_at == 0) it->second.asked_at = monotonic_ns();
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(data);
    message.msg_iovlen = static_cast<std::size_t>(count);
    for (;;) {
      const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL);
      if (sent >= 0 || errno != EINTR) return sent;
    }
  }
};

// ---------------------------------------------------------------- life

Channel::Channel(const ChannelSettings& settings, Counters& counters, Servers& servers,
                 SocketTable& table) noexcept
    : settings_(settings), counters_(counters), servers_(servers), table_(table) {}

Result<std::unique_ptr<Channel>> Channel::make(const ChannelSettings& settings, Counters& counters,
                                               Servers& servers, SocketTable& table) {
  std::unique_ptr<Channel> channel(new Channel(settings, counters, servers, table));
  if (const auto error = channel->open()) return Unexpected{error};
  return channel;
}

// With every option given, c-ares reads no file: resolv.conf and the others are opened and read on
// the blocking pool, by us.
std::error_code Channel::open() {
  if (!init_library()) return DnsErrc::failure;
  char lookups[] = "b";
  ares_options options{};
  options.flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES |
                  (settings_.use_tcp ? ARES_FLAG_USEVC : 0) | (settings_.edns ? ARES_FLAG_EDNS : 0);
  options.timeout = static_cast<int>(settings_.timeout.count());
  options.tries = settings_.attempts;
  options.ndots = 1;
  options.lookups = lookups;
  options.sock_state_cb = &AresCallbacks::state;
  options.sock_state_cb_data = this;
  options.ednspsz = kEdnsSize;
  in_addr placeholder{htonl(INADDR_LOOPBACK)};
  options.servers = &placeholder;
  options.nservers = 1;
  const int mask = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_NDOTS |
                   ARES_OPT_SERVERS | ARES_OPT_DOMAINS | ARES_OPT_LOOKUPS | ARES_OPT_SORTLIST |
                   ARES_OPT_SOCK_STATE_CB | ARES_OPT_EDNSPSZ |
                   (settings_.rotate ? ARES_OPT_ROTATE : ARES_OPT_NOROTATE);
  const Call call(*this);
  int status = ::ares_init_options(&ares_, &options, mask);
  if (status != ARES_SUCCESS) {
    ares_ = nullptr;
    return status == ARES_ENOMEM ? DnsErrc::memory : DnsErrc::failure;
  }
  static constexpr ares_socket_functions functions{&AresCallbacks::open, &AresCallbacks::close,
                                                   &AresCallbacks::connect, &AresCallbacks::receive,
                                                   &AresCallbacks::send};
  ::ares_set_socket_functions(ares_, &functions, this);

  std::vector<ares_addr_port_node> nodes(settings_.servers.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const net::Address& server = settings_.servers[i];
    ares_addr_port_node& node = nodes[i];
    node.next = i + 1 < nodes.size() ? &nodes[i + 1] : nullptr;
    node.family = server.family();
    node.udp_port = node.tcp_port = server.port();
    if (server.is_ipv4()) {
      node.addr.addr4 = reinterpret_cast<const sockaddr_in*>(server.data())->sin_addr;
    } else {
      std::memcpy(&node.addr.addr6,
                  &reinterpret_cast<const sockaddr_in6*>(server.data())->sin6_addr, 16);
    }
  }
  status = ::ares_set_servers_ports(ares_, nodes.data());
  if (status != ARES_SUCCESS) return DnsErrc::failure;
  return {};
}

Channel::~Channel() {
  end_all();
  close_retired();
}

void Channel::end_all() {
  if (!ares_) return;
  destroyed_ = true;
  const Call call(*this);
  ::ares_destroy(std::exchange(ares_, nullptr));
}

void Channel::close_retired() noexcept {
  for (const int fd : retired_) {
    table_.remove(fd);
    ::close(fd);
  }
  retired_.clear();
}

// ---------------------------------------------------------------- questions

// Never one that is in flight here. 65,000 questions at a time find one quickly.
std::uint16_t Channel::fresh_id() {
  for (;;) {
    std::uint16_t id = 0;
    if (::getrandom(&id, sizeof id, 0) != sizeof id) continue;
    if (!in_flight_.contains(id)) return id;
  }
}

void Channel::send(Exchange& exchange) {
  exchange.channel = this;
  exchange.in_flight = true;
  exchange.answer.clear();
  exchange.refusal.clear();
  exchange.error = {};
  exchange.next_ended = nullptr;
  if (!ares_ || in_flight_.size() >= 60'000) {
    exchange.in_flight = false;
    exchange.error = ares_ ? make_error_code(DnsErrc::memory) : make_error_code(Errc::cancelled);
    *last_ended_ = &exchange;
    last_ended_ = &exchange.next_ended;
    return;
  }
  const std::uint16_t id = fresh_id();
  set_id(exchange.question, id);
  in_flight_.emplace(id, &exchange);
  ++sent_;
  counters_.queries.add();
  counters_.in_flight.add();
  const Call call(*this);
  ::ares_send(ares_, reinterpret_cast<const unsigned char*>(exchange.question.data()),
              static_cast<int>(exchange.question.size()), &AresCallbacks::answered, &exchange);
}

// In a callback: notes, and does nothing else.
void Channel::ended(Exchange& exchange, int status, int timeouts, Bytes answer) {
  in_flight_.erase(message_id(exchange.question));
  counters_.in_flight.sub();
  exchange.in_flight = false;
  if (timeouts > 0) counters_.timeouts.add(static_cast<std::uint64_t>(timeouts));
  if (timeouts > 0 && !destroyed_) {
    const std::int64_t now = monotonic_ns();
    for (auto& [fd, socket] : open_)
      judge_silence(socket, now);
  }
  if (destroyed_) {
    exchange.error = make_error_code(Errc::cancelled);
  } else if (status == ARES_SUCCESS && answer.size() >= kHeaderSize) {
    exchange.answer.assign(answer.begin(), answer.end());
  } else if (!exchange.refusal.empty()) {
    const int rcode = static_cast<int>(exchange.refusal[3]) & 15;
    exchange.error = make_error_code(rcode == 5 ? DnsErrc::refused : DnsErrc::server_failure);
  } else {
    switch (status) {
      case ARES_ESERVFAIL:
      case ARES_ENOTIMP:
        exchange.error = DnsErrc::server_failure;
        break;
      case ARES_EREFUSED:
        exchange.error = DnsErrc::refused;
        break;
      case ARES_EFORMERR:
      case ARES_EBADRESP:
        exchange.error = DnsErrc::bad_answer;
        break;
      case ARES_EBADQUERY:
      case ARES_EBADNAME:
        exchange.error = DnsErrc::malformed_name;
        break;
      case ARES_ENOMEM:
        exchange.error = DnsErrc::memory;
        break;
      case ARES_ECONNREFUSED:
        exchange.error = timeouts > 0 ? DnsErrc::no_answer : DnsErrc::unreachable;
        break;
      default:
        exchange.error = DnsErrc::no_answer;
        break;
    }
  }
  *last_ended_ = &exchange;
  last_ended_ = &exchange.next_ended;
}

// A server that has let a question wait for the whole time of a try.
void Channel::judge_silence(const OpenSocket& socket, std::int64_t now) {
  const std::int64_t patience = settings_.timeout.count() * 900'000;
  if (socket.asked_at != 0 && now - socket.asked_at >= patience) servers_.silent(socket.peer, now);
}

// Whether a datagram may be an answer to a question of ours: by its id and its question, in any
// case. c-ares looks at both again, and takes datagrams only from the address and port that it
// asked.
bool Channel::plausible(Bytes datagram) {
  if (datagram.size() < kHeaderSize) return false;
  const auto it = in_flight_.find(message_id(datagram));
  if (it == in_flight_.end()) return false;
  Exchange& exchange = *it->second;
  if ((static_cast<unsigned>(datagram[2]) & 0x80) == 0) return false;
  const auto end = question_end(exchange.question);
  const auto theirs = question_end(datagram);
  if (end && theirs) {
    const auto text = [](Bytes message, std::size_t to) {
      return std::string_view(reinterpret_cast<const char*>(message.data()) + kHeaderSize,
                              to - kHeaderSize);
    };
    if (!same_name(text(exchange.question, *end), text(datagram, *theirs))) return false;
  }
  const int rcode = static_cast<int>(datagram[3]) & 15;
  // Servers may leave the question out when they refuse.
  if (!theirs && rcode == 0) return false;
  if (rcode == 2 || rcode == 4 || rcode == 5)
    exchange.refusal.assign(datagram.begin(), datagram.end());
  return true;
}

void Channel::process(int fd, unsigned ready) {
  if (!ares_) return;
  const Call call(*this);
  ::ares_process_fd(ares_, ready & net::kRead ? fd : ARES_SOCKET_BAD,
                    ready & net::kWrite ? fd : ARES_SOCKET_BAD);
}

void Channel::process_timeouts() {
  if (!ares_) return;
  const Call call(*this);
  ::ares_process_fd(ares_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
}

Deadline Channel::next_timeout() const {
  if (!ares_ || in_flight_.empty()) return {};
  timeval left{};
  if (!::ares_timeout(ares_, nullptr, &left)) return {};
  // c-ares counts microseconds and compares with >=; a little later is never too early.
  return Deadline::after(std::chrono::seconds(left.tv_sec) +
                         std::chrono::microseconds(left.tv_usec + 1000));
}

Exchange* Channel::take_ended() noexcept {
  Exchange* const first = std::exchange(first_ended_, nullptr);
  last_ended_ = &first_ended_;
  return first;
}

void Channel::interest(int fd, unsigned directions) {
  const auto it = std::find_if(interest_.begin(), interest_.end(),
                               [fd](const Socket& socket) { return socket.fd == fd; });
  ++version_;
  if (directions == 0) {
    if (it != interest_.end()) interest_.erase(it);
  } else if (it != interest_.end()) {
    it->directions = directions;
  } else {
    interest_.push_back({fd, directions});
  }
}

}  // namespace runloom::dns
