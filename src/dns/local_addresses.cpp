#include "local_addresses.hpp"

#include <linux/if_addr.h>
#include <linux/if_arp.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "process_state.hpp"
#include "runloom/net/owned_fd.hpp"

namespace runloom::dns {
namespace {

// A dump is made while the request is sent: the kernel has the whole answer, or its first part,
// ready when send(2) returns, and the next part when recv(2) took one. So nothing here waits.
template <class Each>
bool dump(int fd, std::uint16_t type, Each&& each) {
  struct {
    nlmsghdr header;
    rtgenmsg body;
  } request{};
  request.header.nlmsg_len = NLMSG_LENGTH(sizeof request.body);
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.header.nlmsg_seq = 1;
  if (::send(fd, &request, request.header.nlmsg_len, 0) < 0) return false;
  alignas(nlmsghdr) char buffer[8192];
  for (;;) {
    const ssize_t size = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0 || static_cast<std::size_t>(size) > sizeof buffer) return false;
    auto left = static_cast<unsigned>(size);
    for (auto* message = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(message, left);
         message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type == NLMSG_DONE) return true;
      if (message->nlmsg_type == NLMSG_ERROR) return false;
      each(*message);
    }
  }
}

void add_address(LocalAddresses& found, const nlmsghdr& message) {
  const auto* body = static_cast<const ifaddrmsg*>(NLMSG_DATA(&message));
  if (body->ifa_family != AF_INET && body->ifa_family != AF_INET6) return;
  const std::size_t size = body->ifa_family == AF_INET ? 4 : 16;
  const void* address = nullptr;
  const void* local = nullptr;
  auto left = static_cast<int>(IFA_PAYLOAD(&message));
  for (auto* a = IFA_RTA(const_cast<ifaddrmsg*>(body)); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
    if (RTA_PAYLOAD(a) < size) continue;
    if (a->rta_type == IFA_ADDRESS) address = RTA_DATA(a);
    if (a->rta_type == IFA_LOCAL) local = RTA_DATA(a);
  }
  if (local) address = local;
  if (!address) return;
  LocalAddress out{};
  if (body->ifa_family == AF_INET) {
    out.ip.s6_addr[10] = out.ip.s6_addr[11] = 0xff;
    std::memcpy(out.ip.s6_addr + 12, address, 4);
    in_addr ip;
    std::memcpy(&ip, address, 4);
    if (ip.s_addr != htonl(INADDR_LOOPBACK)) found.has_ipv4 = true;
  } else {
    std::memcpy(&out.ip, address, 16);
    if (!IN6_IS_ADDR_LOOPBACK(&out.ip)) found.has_ipv6 = true;
  }
  out.prefix = body->ifa_prefixlen;
  out.interface = body->ifa_index;
  out.deprecated = (body->ifa_flags & (IFA_F_DEPRECATED | IFA_F_OPTIMISTIC)) != 0;
  out.home = (body->ifa_flags & IFA_F_HOMEADDRESS) != 0;
  found.all.push_back(out);
}

std::shared_ptr<const LocalAddresses> read_addresses(int fd) {
  auto found = std::make_shared<LocalAddresses>();
  std::map<std::uint32_t, bool> native;
  const bool complete = fd >= 0 &&
                        dump(fd, RTM_GETADDR,
                             [&](const nlmsghdr& message) {
                               if (message.nlmsg_type == RTM_NEWADDR) add_address(*found, message);
                             }) &&
                        dump(fd, RTM_GETLINK, [&](const nlmsghdr& message) {
                          if (message.nlmsg_type != RTM_NEWLINK) return;
                          const auto* link = static_cast<const ifinfomsg*>(NLMSG_DATA(&message));
                          native[static_cast<std::uint32_t>(link->ifi_index)] =
                              link->ifi_type != ARPHRD_TUNNEL6 && link->ifi_type != ARPHRD_SIT;
                        });
  if (!complete) found->has_ipv4 = found->has_ipv6 = true;
  for (LocalAddress& address : found->all)
    if (const auto it = native.find(address.interface); it != native.end())
      address.native = it->second;
  return found;
}

// The last reading, and the socket on which the kernel tells that it is out of date.
struct Kept {
  void abandon() noexcept { news.reset(); }
  unsigned fork = 0;
  std::mutex mutex;
  net::OwnedFd news;  // guarded by mutex, as what follows
  std::shared_ptr<const LocalAddresses> addresses;
};
constinit ForkSafe<Kept> kept;

bool subscribe(Kept& state) {
  net::OwnedFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (!fd) return false;
  sockaddr_nl name{};
  name.nl_family = AF_NETLINK;
  name.nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR | RTMGRP_LINK | RTMGRP_IPV4_ROUTE |
                   RTMGRP_IPV6_ROUTE | RTMGRP_IPV4_RULE;
  if (::bind(fd.number(), reinterpret_cast<sockaddr*>(&name), sizeof name) != 0) return false;
  for (const int group : {int{RTNLGRP_IPV6_RULE}, int{RTNLGRP_NEXTHOP}})
    if (::setsockopt(fd.number(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) != 0)
      return false;
  state.news = std::move(fd);
  return true;
}

enum class News { none, routes, addresses };

// At most so many messages a call: where routes change all the time there is always some news.
constexpr int kMostMessages = 32;

News take_news(Kept& state) {
  if (!state.news) return News::addresses;
  alignas(nlmsghdr) char buffer[4096];
  News news = News::none;
  for (int i = 0; i < kMostMessages; ++i) {
    const ssize_t size = ::recv(state.news.number(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno != ENOBUFS) break;
    if (size < static_cast<ssize_t>(sizeof(nlmsghdr))) {  // more than there was room for
      news = News::addresses;
      continue;
    }
    auto left = static_cast<unsigned>(size);
    for (auto* message = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(message, left);
         message = NLMSG_NEXT(message, left)) {
      const bool address = message->nlmsg_type == RTM_NEWADDR ||
                           message->nlmsg_type == RTM_DELADDR ||
                           message->nlmsg_type == RTM_NEWLINK || message->nlmsg_type == RTM_DELLINK;
      news = std::max(news, address ? News::addresses : News::routes);
    }
  }
  return news;
}

}  // namespace

Sources::Key Sources::key_of(const IpAddress& destination) noexcept {
  Key key{destination.family, destination.scope, {}};
  std::copy_n(destination.bytes.s6_addr, 16, std::get<2>(key).begin());
  return key;
}

std::optional<Sources::Source> Sources::find(const IpAddress& destination) const {
  std::lock_guard hold(mutex_);
  const auto it = known_.find(key_of(destination));
  if (it == known_.end()) return std::nullopt;
  return it->second;
}

void Sources::add(const IpAddress& destination, const Source& source) {
  constexpr std::size_t kMost = 1024;
  std::lock_guard hold(mutex_);
  if (known_.size() >= kMost) known_.clear();
  known_.insert_or_assign(key_of(destination), source);
}

const LocalAddress* LocalAddresses::find(const in6_addr& ip) const noexcept {
  for (const LocalAddress& address : all)
    if (std::memcmp(&address.ip, &ip, sizeof ip) == 0) return &address;
  return nullptr;
}

std::shared_ptr<const LocalAddresses> local_addresses() {
  Kept& state = kept.get();
  std::lock_guard hold(state.mutex);
  const News news = state.addresses ? take_news(state) : News::addresses;
  if (news == News::none) return state.addresses;
  if (news == News::routes)
    return state.addresses = std::make_shared<LocalAddresses>(*state.addresses);
  if (!state.news) subscribe(state);
  const net::OwnedFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  state.addresses = read_addresses(fd.number());
  return state.addresses;
}

}  // namespace runloom::dns
