// A name server that says whatever a test wants, over UDP and TCP on the loopback, from a thread of
// its own with plain kernel sockets.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runloom/dns/record.hpp"
#include "runloom/net/address.hpp"

namespace runloom::test {

struct DnsQuestion {
  std::string name;  // in lower case, without the trailing dot
  dns::RecordType type{};
  bool tcp = false;
  std::string message;  // as it came
};

// An answer under construction; it begins as an empty NOERROR with the question's id and question.
class DnsReply {
 public:
  explicit DnsReply(const DnsQuestion& question);

  DnsReply& rcode(int code);
  DnsReply& truncated();
  DnsReply& id(std::uint16_t id);
  DnsReply& authoritative();
  // Replaces the question section.
  DnsReply& question(std::string_view name, dns::RecordType type);
  DnsReply& no_question();
  DnsReply& a(std::string_view ip, std::string_view owner = {}, std::uint32_t ttl = 300);
  DnsReply& aaaa(std::string_view ip, std::string_view owner = {}, std::uint32_t ttl = 300);
  DnsReply& cname(std::string_view target, std::string_view owner = {}, std::uint32_t ttl = 300);
  DnsReply& record(std::string_view owner, std::uint16_t type, std::string_view data,
                   std::uint32_t ttl = 300, int section = 1);
  DnsReply& soa(std::uint32_t minimum, std::uint32_t ttl = 300);
  std::string bytes() const;
  std::uint16_t id() const;

  static std::string encode(std::string_view name);

 private:
  void count(int section);
  std::string name_;
  std::string header_, question_, records_;
};
// Numbers as a message has them.
std::string be16(unsigned value);
std::string be32(std::uint32_t value);

class DnsServer {
 public:
  // How the script answers: any number of messages, each at its time. In TCP the length goes in
  // front by itself, but for send_raw.
  class Responder {
   public:
    void send(const DnsReply& reply) { send(reply.bytes()); }
    void send(std::string message);
    void send_after(std::chrono::milliseconds delay, std::string message);
    // UDP: from another port than was asked.
    void send_from_elsewhere(std::string message);
    // TCP: bytes as they are; and the end.
    void send_raw(std::string bytes, std::chrono::milliseconds delay = {});
    void close(std::chrono::milliseconds delay = {});

   private:
    friend class DnsServer;
    DnsServer* server_ = nullptr;
    int fd_ = -1;
    net::Address peer_;
    bool tcp_ = false;
  };
  // Called on the server's thread.
  using Script = std::function<void(const DnsQuestion&, Responder&)>;

  explicit DnsServer(Script script, net::Address address = net::Address::loopback_ipv4());
  ~DnsServer();
  DnsServer(const DnsServer&) = delete;
  DnsServer& operator=(const DnsServer&) = delete;

  const net::Address& address() const { return address_; }
  // Questions that have come: all, or by "name/TYPE" ("www.example/AAAA").
  int questions() const { return total_.load(); }
  int questions(const std::string& which) const;
  // In the order in which they came.
  std::vector<std::string> log() const;
  int tcp_connections() const { return tcp_connections_.load(); }
  // Ports that UDP questions came from.
  std::vector<std::uint16_t> ports() const;

 private:
  struct Later {
    std::chrono::steady_clock::time_point when;
    int fd;
    net::Address peer;
    bool tcp;
    bool close;
    std::string bytes;
  };
  struct Connection {
    std::string in;
    std::string out;
  };
  void run();
  void ask(const std::string& message, int fd, const net::Address& peer, bool tcp);
  void emit(const Later& later);
  void read_udp();
  void read_tcp(int fd);

  Script script_;
  net::Address address_;
  int udp_ = -1, elsewhere_ = -1, tcp_ = -1, stop_ = -1;
  std::map<int, Connection> connections_;
  std::vector<Later> later_;
  std::atomic<int> total_{0};
  std::atomic<int> tcp_connections_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> log_;      // guarded by mutex_
  std::vector<std::uint16_t> ports_;  // likewise
  std::thread thread_;
};

// A script for a zone: "name/TYPE" to addresses; other names get NXDOMAIN, other types of a name
// that is there get nothing.
DnsServer::Script zone(std::map<std::string, std::vector<std::string>> records);

}  // namespace runloom::test
