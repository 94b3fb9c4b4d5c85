#include "support/dns_server.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

namespace runloom::test {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::abort();
}

net::Address name_of(int fd) {
  net::Address address;
  socklen_t size = net::Address::kMostSize;
  if (::getsockname(fd, address.fill(), &size) != 0) give_up("getsockname");
  address.filled(size);
  return address;
}

int bound(int type, const net::Address& address) {
  const int fd = ::socket(address.family(), type | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd < 0) give_up("socket");
  if (::bind(fd, address.data(), address.size()) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

// The question of a message that we trust: it comes from the resolver under test.
DnsQuestion read_question(const std::string& message, bool tcp) {
  DnsQuestion question;
  question.tcp = tcp;
  question.message = message;
  std::size_t at = 12;
  while (at < message.size() && message[at] != 0) {
    const auto length = static_cast<unsigned char>(message[at]);
    if (!question.name.empty()) question.name += '.';
    for (std::size_t i = 1; i <= length && at + i < message.size(); ++i)
      question.name += static_cast<char>(std::tolower(static_cast<unsigned char>(message[at + i])));
    at += length + 1u;
  }
  if (at + 2 < message.size())
    question.type = static_cast<dns::RecordType>(static_cast<unsigned char>(message[at + 1]) << 8 |
                                                 static_cast<unsigned char>(message[at + 2]));
  return question;
}

}  // namespace

std::string be16(unsigned value) {
  return {static_cast<char>(value >> 8), static_cast<char>(value)};
}
std::string be32(std::uint32_t value) {
  return be16(value >> 16) + be16(value & 0xffff);
}

// ---------------------------------------------------------------- DnsReply

DnsReply::DnsReply(const DnsQuestion& question) : name_(question.name) {
  header_ = question.message.substr(0, 2) + be16(0x8180) + be16(1) + be16(0) + be16(0) + be16(0);
  std::size_t at = 12;
  while (at < question.message.size() && question.message[at] != 0)
    at += static_cast<unsigned char>(question.message[at]) + 1u;
  question_ = question.message.substr(12, at + 5 - 12);
}

std::string DnsReply::encode(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    out += static_cast<char>(dot);
    out += name.substr(0, dot);
    name.remove_prefix(std::min(dot + 1, name.size()));
  }
  return out + '\0';
}

void DnsReply::count(int section) {
  const std::size_t at = 4 + 2 * static_cast<std::size_t>(section);
  const unsigned now = static_cast<unsigned char>(header_[at]) * 256u +
                       static_cast<unsigned char>(header_[at + 1]) + 1;
  header_.replace(at, 2, be16(now));
}

DnsReply& DnsReply::rcode(int code) {
  header_[3] = static_cast<char>((header_[3] & 0xf0) | code);
  return *this;
}
DnsReply& DnsReply::truncated() {
  header_[2] = static_cast<char>(header_[2] | 2);
  return *this;
}
DnsReply& DnsReply::authoritative() {
  header_[2] = static_cast<char>(header_[2] | 4);
  return *this;
}
DnsReply& DnsReply::id(std::uint16_t id) {
  header_.replace(0, 2, be16(id));
  return *this;
}
std::uint16_t DnsReply::id() const {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(header_[0]) * 256u +
                                    static_cast<unsigned char>(header_[1]));
}
DnsReply& DnsReply::question(std::string_view name, dns::RecordType type) {
  question_ = encode(name) + be16(static_cast<unsigned>(type)) + be16(1);
  return *this;
}
DnsReply& DnsReply::no_question() {
  question_.clear();
  header_.replace(4, 2, be16(0));
  return *this;
}

DnsReply& DnsReply::record(std::string_view owner, std::uint16_t type, std::string_view data,
                           std::uint32_t ttl, int section) {
  records_ += encode(owner.empty() ? name_ : owner) + be16(type) + be16(1) + be32(ttl) +
              be16(static_cast<unsigned>(data.size()));
  records_ += data;
  count(section);
  return *this;
}

DnsReply& DnsReply::a(std::string_view ip, std::string_view owner, std::uint32_t ttl) {
  std::string data(4, '\0');
  if (::inet_pton(AF_INET, std::string(ip).c_str(), data.data()) != 1) give_up("not IPv4");
  return record(owner, 1, data, ttl);
}
DnsReply& DnsReply::aaaa(std::string_view ip, std::string_view owner, std::uint32_t ttl) {
  std::string data(16, '\0');
  if (::inet_pton(AF_INET6, std::string(ip).c_str(), data.data()) != 1) give_up("not IPv6");
  return record(owner, 28, data, ttl);
}
DnsReply& DnsReply::cname(std::string_view target, std::string_view owner, std::uint32_t ttl) {
  return record(owner, 5, encode(target), ttl);
}
DnsReply& DnsReply::soa(std::uint32_t minimum, std::uint32_t ttl) {
  const std::string data = encode("ns.test") + encode("mail.test") + be32(1) + be32(2) + be32(3) +
                           be32(4) + be32(minimum);
  return record("test", 6, data, ttl, 2);
}

std::string DnsReply::bytes() const {
  return header_ + question_ + records_;
}

// ---------------------------------------------------------------- Responder

void DnsServer::Responder::send(std::string message) {
  send_after({}, std::move(message));
}

void DnsServer::Responder::send_after(std::chrono::milliseconds delay, std::string message) {
  if (tcp_) message = be16(static_cast<unsigned>(message.size())) + message;
  send_raw(std::move(message), delay);
}

void DnsServer::Responder::send_from_elsewhere(std::string message) {
  server_->emit({Clock::now(), server_->elsewhere_, peer_, false, false, std::move(message)});
}

void DnsServer::Responder::send_raw(std::string bytes, std::chrono::milliseconds delay) {
  Later later{Clock::now() + delay, fd_, peer_, tcp_, false, std::move(bytes)};
  if (delay.count() == 0) {
    server_->emit(later);
  } else {
    server_->later_.push_back(std::move(later));
  }
}

void DnsServer::Responder::close(std::chrono::milliseconds delay) {
  server_->later_.push_back({Clock::now() + delay, fd_, peer_, true, true, {}});
}

// ---------------------------------------------------------------- DnsServer

DnsServer::DnsServer(Script script, net::Address address) : script_(std::move(script)) {
  // The same port for both protocols.
  for (int tries = 0; tries < 50 && tcp_ < 0; ++tries) {
    if (udp_ >= 0) ::close(udp_);
    udp_ = bound(SOCK_DGRAM, address);
    if (udp_ < 0) give_up("bind");
    address_ = name_of(udp_);
    tcp_ = bound(SOCK_STREAM, address_);
  }
  if (tcp_ < 0 || ::listen(tcp_, 64) != 0) give_up("listen");
  elsewhere_ = bound(SOCK_DGRAM, address.with_port(0));
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { run(); });
}

DnsServer::~DnsServer() {
  const std::uint64_t one = 1;
  if (::write(stop_, &one, sizeof one) != sizeof one) give_up("stop");
  thread_.join();
  for (const auto& [fd, connection] : connections_)
    ::close(fd);
  for (const int fd : {udp_, elsewhere_, tcp_, stop_})
    ::close(fd);
}

int DnsServer::questions(const std::string& which) const {
  std::lock_guard hold(mutex_);
  return static_cast<int>(std::count(log_.begin(), log_.end(), which));
}

std::vector<std::string> DnsServer::log() const {
  std::lock_guard hold(mutex_);
  return log_;
}

std::vector<std::uint16_t> DnsServer::ports() const {
  std::lock_guard hold(mutex_);
  return ports_;
}

void DnsServer::ask(const std::string& message, int fd, const net::Address& peer, bool tcp) {
  if (message.size() < 12) return;
  const DnsQuestion question = read_question(message, tcp);
  {
    std::lock_guard hold(mutex_);
    log_.push_back(question.name + '/' + dns::to_string(question.type));
    if (!tcp) ports_.push_back(peer.port());
  }
  total_.fetch_add(1);
  Responder responder;
  responder.server_ = this;
  responder.fd_ = fd;
  responder.peer_ = peer;
  responder.tcp_ = tcp;
  script_(question, responder);
}

void DnsServer::emit(const Later& later) {
  if (later.close) {
    ::close(later.fd);
    connections_.erase(later.fd);
  } else if (later.tcp) {
    if (connections_.contains(later.fd))
      (void)!::send(later.fd, later.bytes.data(), later.bytes.size(), MSG_NOSIGNAL);
  } else {
    (void)!::sendto(later.fd, later.bytes.data(), later.bytes.size(), MSG_NOSIGNAL,
                    later.peer.data(), later.peer.size());
  }
}

void DnsServer::read_udp() {
  char buffer[4096];
  net::Address peer;
  socklen_t size = net::Address::kMostSize;
  const ssize_t got = ::recvfrom(udp_, buffer, sizeof buffer, MSG_DONTWAIT, peer.fill(), &size);
  if (got <= 0) return;
  peer.filled(size);
  ask(std::string(buffer, static_cast<std::size_t>(got)), udp_, peer, false);
}

void DnsServer::read_tcp(int fd) {
  char buffer[4096];
  const ssize_t got = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (got <= 0) {
    ::close(fd);
    connections_.erase(fd);
    return;
  }
  std::string& in = connections_[fd].in;
  in.append(buffer, static_cast<std::size_t>(got));
  while (in.size() >= 2) {
    const std::size_t size =
        static_cast<unsigned char>(in[0]) * 256u + static_cast<unsigned char>(in[1]);
    if (in.size() < 2 + size) return;
    const std::string message = in.substr(2, size);
    in.erase(0, 2 + size);
    ask(message, fd, {}, true);
    if (!connections_.contains(fd)) return;
  }
}

void DnsServer::run() {
  for (;;) {
    const auto now = Clock::now();
    int timeout = -1;
    for (std::size_t i = 0; i < later_.size();) {
      if (later_[i].when <= now) {
        const Later due = std::move(later_[i]);
        later_.erase(later_.begin() + static_cast<std::ptrdiff_t>(i));
        emit(due);
        continue;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(later_[i].when - now).count();
      timeout = timeout < 0 ? static_cast<int>(left) : std::min(timeout, static_cast<int>(left));
      ++i;
    }
    std::vector<pollfd> polled{{stop_, POLLIN, 0}, {udp_, POLLIN, 0}, {tcp_, POLLIN, 0}};
    for (const auto& [fd, connection] : connections_)
      polled.push_back({fd, POLLIN, 0});
    if (::poll(polled.data(), polled.size(), timeout) <= 0) continue;
    if (polled[0].revents) return;
    if (polled[1].revents) read_udp();
    if (polled[2].revents) {
      if (const int fd = ::accept4(tcp_, nullptr, nullptr, SOCK_CLOEXEC); fd >= 0) {
        connections_[fd];
        tcp_connections_.fetch_add(1);
      }
    }
    for (std::size_t i = 3; i < polled.size(); ++i)
      if (polled[i].revents && connections_.contains(polled[i].fd)) read_tcp(polled[i].fd);
  }
}

DnsServer::Script zone(std::map<std::string, std::vector<std::string>> records) {
  return
      [records = std::move(records)](const DnsQuestion& question, DnsServer::Responder& responder) {
        DnsReply reply(question);
        const auto it = records.find(question.name + '/' + dns::to_string(question.type));
        const auto next = records.lower_bound(question.name + '/');
        if (it != records.end()) {
          for (const std::string& value : it->second) {
            if (question.type == dns::RecordType::a) reply.a(value);
            if (question.type == dns::RecordType::aaaa) reply.aaaa(value);
            if (question.type == dns::RecordType::ptr || question.type == dns::RecordType::cname)
              reply.record({}, static_cast<std::uint16_t>(question.type), DnsReply::encode(value));
          }
        } else if (next == records.end() || !next->first.starts_with(question.name + '/')) {
          reply.rcode(3).soa(60);
        } else {
          reply.soa(60);
        }
        responder.send(reply);
      };
}

}  // namespace runloom::test
