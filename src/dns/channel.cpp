#include "channel.hpp"

// Newer versions would rather have calls that 1.18 has not.
#define CARES_NO_DEPRECATED
#include <ares.h>
#include <netinet/tcp.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "runloom/dns/error.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/sched/check.hpp"
#include "runloom/sched/fiber.hpp"
#include "socket_table.hpp"

static_assert(ARES_VERSION >= 0x011201, "c-ares 1.18.1 or newer is needed");

namespace runloom::dns {
namespace {

// A flood must not hold the hub: so many reads, and then others have their turn.
constexpr int kMostReads = 64;
// Questions from one port: whoever wants to forge answers has to find the port as well as the id.
constexpr std::uint32_t kQuestionsAPort = 256;

// Inside a callback of the calling thread.
thread_local int tl_callbacks = 0;

struct InCallback {
  InCallback() noexcept { ++tl_callbacks; }
  ~InCallback() { --tl_callbacks; }
};

// D10.
void check_outside_of_callbacks() noexcept {
#ifdef RUNLOOM_DEBUG
  RUNLOOM_CHECK(tl_callbacks == 0, "c-ares was called inside one of its callbacks");
#endif
}

bool init_library() {
  static const bool ready = ::ares_library_init(ARES_LIB_INIT_ALL) == ARES_SUCCESS;
  return ready;
}

}  // namespace

// A call of c-ares, from its begin to its end.
class Channel::Call {
 public:
  explicit Call(Channel& channel) noexcept {
    check_outside_of_callbacks();
    channel.budget_ = kMostReads;
  }

 private:
  this_fiber::ForbidPark forbid_;
};

// What c-ares calls.
struct AresCallbacks {
  static Channel& of(void* user) noexcept { return *static_cast<Channel*>(user); }

  static void answered(void* user, int status, int timeouts, unsigned char*, int) {
    const InCallback in;
    auto& exchange = *static_cast<Exchange*>(user);
    exchange.channel->ended(exchange, status, timeouts);
  }

  static void state(void* user, ares_socket_t fd, int readable, int writable) {
    const InCallback in;
    Channel& channel = of(user);
    const auto it = channel.open_.find(fd);
    if (it == channel.open_.end()) return;
    it->second.wanted = (readable ? net::kRead : 0u) | (writable ? net::kWrite : 0u);
    channel.interest(fd);
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
    // Since 1.20 c-ares closes what was silent, and only then ends a question or asks elsewhere.
    if (const auto it = channel.open_.find(fd); it != channel.open_.end()) {
      if (!channel.destroyed_) channel.judge_silence(it->second, monotonic_ns());
      channel.open_.erase(it);
    }
    channel.interest(fd);
    channel.retired_.push_back(fd);
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

  static ares_ssize_t receive(ares_socket_t fd, void* buffer, size_t size, int, sockaddr* from,
                              ares_socklen_t* from_size, void* user) {
    const InCallback in;
    Channel& channel = of(user);
    const std::span room(static_cast<std::byte*>(buffer), size);
    const auto it = channel.open_.find(fd);
    if (it == channel.open_.end()) {
      errno = EBADF;
      return -1;
    }
    return it->second.tcp ? channel.receive_stream(fd, room)
                          : channel.receive_datagram(fd, room, from, from_size);
  }

  static ares_ssize_t send(ares_socket_t fd, const iovec* data, int count, void* user) {
    const InCallback in;
    return of(user).transmit(fd, std::span(data, static_cast<std::size_t>(count)));
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
  options.flags =
      ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES | (settings_.use_tcp ? ARES_FLAG_USEVC : 0);
  options.timeout = static_cast<int>(settings_.timeout.count());
  options.tries = settings_.attempts;
  options.ndots = 1;
  options.lookups = lookups;
  options.sock_state_cb = &AresCallbacks::state;
  options.sock_state_cb_data = this;
  in_addr placeholder{htonl(INADDR_LOOPBACK)};
  options.servers = &placeholder;
  options.nservers = 1;
  int mask = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_NDOTS |
             ARES_OPT_SERVERS | ARES_OPT_DOMAINS | ARES_OPT_LOOKUPS | ARES_OPT_SORTLIST |
             ARES_OPT_SOCK_STATE_CB | (settings_.rotate ? ARES_OPT_ROTATE : ARES_OPT_NOROTATE);
#ifdef ARES_OPT_UDP_MAX_QUERIES  // 1.20, which reads resolv.conf whatever the options say
  char nothing[] = "/dev/null";
  options.resolvconf_path = nothing;
  mask |= ARES_OPT_RESOLVCONF;
  options.udp_max_queries = static_cast<int>(kQuestionsAPort);
  mask |= ARES_OPT_UDP_MAX_QUERIES;
#endif
#ifdef ARES_OPT_QUERY_CACHE  // 1.23; on by default since 1.31
  options.qcache_max_ttl = 0;
  mask |= ARES_OPT_QUERY_CACHE;
#endif
#ifdef ARES_OPT_SERVER_FAILOVER  // 1.32: no questions of its own to servers that have failed
  options.server_failover_opts = {};
  mask |= ARES_OPT_SERVER_FAILOVER;
#endif
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

// Never one that is in flight here. 60,000 questions at a time leave enough.
std::uint16_t Channel::fresh_id() {
  for (;;) {
    // It has another source where getrandom(2) is forbidden, and ends the process without any.
    const auto id = static_cast<std::uint16_t>(::arc4random());
    if (!by_id_.contains(id)) return id;
  }
}

void Channel::give_id(Exchange& exchange, std::uint16_t id) {
  if (const auto it = by_id_.find(exchange.id); it != by_id_.end() && it->second == &exchange)
    by_id_.erase(it);
  exchange.id = id;
  by_id_[id] = &exchange;
}

void Channel::send(Exchange& exchange) {
  exchange.channel = this;
  exchange.in_flight = true;
  exchange.answer.clear();
  exchange.refusal.clear();
  exchange.error = {};
  exchange.without_edns = exchange.sent = false;
  exchange.next_ended = nullptr;
  if (!ares_ || in_flight_.size() >= 60'000) {
    exchange.in_flight = false;
    exchange.error = ares_ ? make_error_code(DnsErrc::memory) : make_error_code(Errc::cancelled);
    *last_ended_ = &exchange;
    last_ended_ = &exchange.next_ended;
    return;
  }
  exchange.number = sent_++;
  in_flight_.emplace(exchange.number, &exchange);
  // Newer ones take an id of their own; then it is known when the question goes out.
  give_id(exchange, fresh_id());
  counters_.queries.add();
  counters_.in_flight.add();
  std::vector<std::byte> stand_in;
  put_stand_in_question(stand_in, exchange.id, exchange.number);
  const Call call(*this);
  ::ares_send(ares_, reinterpret_cast<const unsigned char*>(stand_in.data()),
              static_cast<int>(stand_in.size()), &AresCallbacks::answered, &exchange);
}

// Where c-ares takes new ports by itself the channel may stay.
bool Channel::used_up() const noexcept {
#ifdef ARES_OPT_UDP_MAX_QUERIES
  return false;
#else
  return sent_ >= kQuestionsAPort;
#endif
}

// In a callback: notes, and does nothing else.
void Channel::ended(Exchange& exchange, int status, int timeouts) {
  in_flight_.erase(exchange.number);
  if (const auto it = by_id_.find(exchange.id); it != by_id_.end() && it->second == &exchange)
    by_id_.erase(it);
  counters_.in_flight.sub();
  exchange.in_flight = false;
  if (timeouts > 0) counters_.timeouts.add(static_cast<std::uint64_t>(timeouts));
  if (timeouts > 0 && !destroyed_) {
    const std::int64_t now = monotonic_ns();
    for (auto& [fd, socket] : open_)
      judge_silence(socket, now);
  }
  const bool answered = status == ARES_SUCCESS && !exchange.answer.empty() && !destroyed_;
  if (!answered) exchange.answer.clear();
  if (answered) {
    // digest() has it.
  } else if (destroyed_) {
    exchange.error = make_error_code(Errc::cancelled);
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

void Channel::process(int fd, unsigned ready) {
  if (!ares_) return;
  if (ready & net::kWrite)
    if (const auto it = open_.find(fd); it != open_.end()) send_unsent(fd, it->second);
  const auto left = [&] {
    const auto it = open_.find(fd);
    return it == open_.end() ? 0 : it->second.digested.size();
  };
  const Call call(*this);
  // c-ares 1.18 takes a length or a message of a stream at a time, and nothing tells of what is
  // left here.
  for (std::size_t before = left();;) {
    ::ares_process_fd(ares_, ready & net::kRead ? fd : ARES_SOCKET_BAD,
                      ready & net::kWrite ? fd : ARES_SOCKET_BAD);
    const std::size_t after = left();
    if (after == 0 || after == before) return;
    before = after;
    ready = net::kRead;
  }
}

void Channel::process_timeouts() {
  if (!ares_) return;
  const Call call(*this);
  ::ares_process_fd(ares_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
}

Deadline Channel::next_timeout() const {
  if (!ares_ || in_flight_.empty()) return {};
  check_outside_of_callbacks();
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

// What c-ares waits for, and what we have to send ourselves.
void Channel::interest(int fd) {
  unsigned directions = 0;
  if (const auto open = open_.find(fd); open != open_.end()) {
    directions = open->second.wanted;
    if (directions != 0 && !open->second.unsent.empty()) directions |= net::kWrite;
  }
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
