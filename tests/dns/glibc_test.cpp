// The same question to glibc's getaddrinfo and to ours, with the same files and the same server, in
// a network and mount namespace of its own: equal addresses, order and error, or a line in
// glibc_differences.txt says why not.
#include <fnmatch.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "runloom/dns/error.hpp"
#include "runloom/dns/resolver.hpp"
#include "support/child.hpp"
#include "support/dns_test.hpp"

namespace runloom::dns {
namespace {

using namespace test;

constexpr int kCannot = 77;

std::string differences_file() {
  const std::string here = __FILE__;
  return here.substr(0, here.rfind('/') + 1) + "glibc_differences.txt";
}

struct Question {
  const char* host;
  const char* service = nullptr;
  int family = AF_UNSPEC;
  int flags = 0;
  int socktype = SOCK_STREAM;
  int protocol = 0;
};

std::string text_of(const char* text) {
  return text ? '"' + std::string(text) + '"' : "null";
}

std::string describe(const std::string& configuration, const Question& q) {
  return configuration + ' ' + text_of(q.host) + ' ' + text_of(q.service) + " family " +
         std::to_string(q.family) + " flags " + std::to_string(q.flags) + " socktype " +
         std::to_string(q.socktype) + " protocol " + std::to_string(q.protocol);
}

std::string item(int family, int socktype, int protocol, const net::Address& address,
                 const std::string& canonical) {
  return '\n' + ("    " + std::to_string(family)) + '/' + std::to_string(socktype) + '/' +
         std::to_string(protocol) + ' ' + address.to_string() + ' ' + canonical;
}

std::string ask_glibc(const Question& q) {
  addrinfo hints{};
  hints.ai_flags = q.flags;
  hints.ai_family = q.family;
  hints.ai_socktype = q.socktype;
  hints.ai_protocol = q.protocol;
  addrinfo* list = nullptr;
  const int code = ::getaddrinfo(q.host, q.service, &hints, &list);
  std::string out = std::to_string(code);
  if (code != 0) return out;
  for (const addrinfo* at = list; at; at = at->ai_next)
    out += item(at->ai_family, at->ai_socktype, at->ai_protocol,
                net::Address::from_sockaddr(at->ai_addr, at->ai_addrlen).value(),
                at->ai_canonname ? at->ai_canonname : "");
  ::freeaddrinfo(list);
  return out;
}

std::optional<std::string_view> optional(const char* text) {
  return text ? std::optional<std::string_view>(text) : std::nullopt;
}

std::string ask_ours(Resolver& resolver, const Question& q) {
  const auto found = resolver.getaddrinfo(
      optional(q.host), optional(q.service),
      {.flags = q.flags, .family = q.family, .socktype = q.socktype, .protocol = q.protocol});
  if (!found) return std::to_string(eai(found.error()));
  std::string out = "0";
  for (const AddressInfo& info : *found)
    out += item(info.family, info.socktype, info.protocol, info.address, info.canonical_name);
  return out;
}

// ---------------------------------------------------------------- the server

void answer(const DnsQuestion& question, DnsServer::Responder& responder) {
  const std::string& name = question.name;
  const bool is_a = question.type == RecordType::a, is_aaaa = question.type == RecordType::aaaa;
  DnsReply reply(question);
  const auto a = [&](std::initializer_list<const char*> ips) {
    if (is_a)
      for (const char* ip : ips)
        reply.a(ip);
  };
  const auto aaaa = [&](std::initializer_list<const char*> ips) {
    if (is_aaaa)
      for (const char* ip : ips)
        reply.aaaa(ip);
  };
  if (name == "silent.test") return;
  if (name == "v4.test" || name == "here.two.test" || name == "third.two.test") {
    a({"192.0.2.10"});
  } else if (name == "v6.test") {
    aaaa({"2001:db8::10"});
  } else if (name == "both.test" || name == "both.one.test") {
    a({"192.0.2.11"});
    aaaa({"2001:db8::11"});
  } else if (name == "many.test") {
    a({"198.51.100.1", "192.0.2.12", "127.0.0.9", "169.254.1.1", "10.0.0.1", "192.0.2.99"});
    aaaa({"2002:c000:20c::1", "2001:db8::12", "fe80::12", "::1", "fd00::12", "2001:db8:0:1::12",
          "ff02::1", "2001:0:1::1", "fec0::1"});
  } else if (name == "alias.test") {
    reply.cname("mid.test").cname("Real.test", "mid.test");
    if (is_a) reply.a("192.0.2.13", "real.test");
    if (is_aaaa) reply.aaaa("2001:db8::13", "real.test");
  } else if (name == "aliasonly.test") {
    reply.cname("nowhere.test");
  } else if (name == "loop.test") {
    reply.cname("loop.test");
  } else if (name == "empty.test" || name == "here.one.test") {
    reply.soa(60);
  } else if (name == "servfail.test" || name == "third.one.test" ||
             name == "fail.2.0.192.in-addr.arpa" || name == "7.2.0.192.in-addr.arpa") {
    reply.rcode(2);
  } else if (name == "refused.test") {
    reply.rcode(5);
  } else if (name == "notimp.test") {
    reply.rcode(4);
  } else if (name == "formerr.test") {
    reply.rcode(1);
  } else if (name == "yx.test") {
    reply.rcode(6);
  } else if (name == "a-fails.test") {
    is_a ? reply.rcode(2) : reply.aaaa("2001:db8::14");
  } else if (name == "aaaa-fails.test") {
    is_aaaa ? reply.rcode(2) : reply.a("192.0.2.14");
  } else if (name == "a-nx.test") {
    is_a ? reply.rcode(3) : reply.aaaa("2001:db8::15");
  } else if (name == "aaaa-nx.test") {
    is_aaaa ? reply.rcode(3) : reply.a("192.0.2.15");
  } else if (name == "aaaa-notimp.test") {
    is_aaaa ? reply.rcode(4) : reply.a("192.0.2.16");
  } else if (name == "empty-fails.test") {
    if (is_aaaa) reply.rcode(2);
  } else if (name == "tcp.test") {
    if (!question.tcp) return responder.send(reply.truncated());
    for (int i = 1; i <= 60; ++i)
      a({("192.0.2." + std::to_string(i)).c_str()});
  } else if (name == "junk.test") {
    return responder.send(reply.bytes().substr(0, 20));
  } else if (name == "1.2.0.192.in-addr.arpa") {
    reply.record({}, 12, DnsReply::encode("one.test"));
  } else {
    reply.rcode(3).soa(60);
  }
  responder.send(reply);
}

constexpr const char* kServerNames[] = {
    "v4.test",          "v6.test",         "both.test",      "BOTH.Test",        "both.test.",
    "many.test",        "alias.test",      "aliasonly.test", "loop.test",        "empty.test",
    "servfail.test",    "refused.test",    "notimp.test",    "formerr.test",     "yx.test",
    "a-fails.test",     "aaaa-fails.test", "a-nx.test",      "aaaa-nx.test",     "aaaa-notimp.test",
    "empty-fails.test", "tcp.test",        "nx.test",        "under_score.test", "a..b.test",
    "-dash.test"};
constexpr const char* kHostNames[] = {"localhost", "h4",    "H4",     "h6",      "hboth",
                                      "hmulti",    "alias", "mapped", "six-loop"};
constexpr const char* kNumbers[] = {"127.0.0.1",
                                    "127.1",
                                    "0x7f.1",
                                    "0177.1",
                                    "1",
                                    "4294967295",
                                    "4294967296",
                                    "256.1.1.1",
                                    "1.2.3.4.5",
                                    "1.2.3.",
                                    "::1",
                                    "::",
                                    "[::1]",
                                    "::1%lo",
                                    "::1%1",
                                    "fe80::1%lo",
                                    "fe80::1%1",
                                    "fe80::1%nope",
                                    "fe80::1%",
                                    "ff02::1%lo",
                                    "::ffff:1.2.3.4",
                                    "::1.2.3.4",
                                    "2001:db8::1%5",
                                    "fe80::1%4294967296",
                                    "1:2:3:4:5:6:7:8",
                                    "1:2:3:4:5:6:7:8:9",
                                    "::g",
                                    "0x",
                                    "08.1",
                                    "1.2.3.4 ",
                                    " 1.2.3.4"};
constexpr const char* kServices[] = {nullptr, "",   "80",  "http", "www", "domain", "ntp",  "nope",
                                     "70000", "-1", " 80", "80 ",  "+80", "0x50",   "HTTP", "*"};
constexpr int kFamilies[] = {AF_UNSPEC, AF_INET, AF_INET6};
constexpr int kFlags[] = {0,
                          AI_CANONNAME,
                          AI_V4MAPPED,
                          AI_V4MAPPED | AI_ALL,
                          AI_ADDRCONFIG,
                          AI_CANONNAME | AI_V4MAPPED | AI_ALL,
                          AI_NUMERICHOST,
                          AI_PASSIVE};

// ---------------------------------------------------------------- the comparison

class Comparison {
 public:
  explicit Comparison(const std::string& differences) {
    std::ifstream in(differences);
    for (std::string line; std::getline(in, line);)
      if (!line.empty() && line[0] != '#') known_.emplace(line.substr(0, line.find(" # ")), 0);
  }
  void check(const std::string& what, const std::string& glibc, const std::string& ours) {
    ++asked_;
    ++errors_[glibc.substr(0, glibc.find('\n'))];
    if (glibc == ours) return;
    for (auto& [pattern, count] : known_) {
      if (::fnmatch(pattern.c_str(), what.c_str(), 0) != 0) continue;
      ++count;
      return;
    }
    ++wrong_;
    std::printf("%s\n  glibc: %s\n  ours:  %s\n", what.c_str(), glibc.c_str(), ours.c_str());
  }
  int finish() {
    for (const auto& [pattern, count] : known_)
      if (count == 0) std::printf("no difference any more: %s\n", pattern.c_str()), ++wrong_;
    for (const char* code : {"0", "-2", "-3", "-5", "-1", "-6", "-7", "-8", "-9"})
      if (errors_[code] == 0) std::printf("nothing gave %s\n", code), ++wrong_;
    std::printf("%d compared, %d differ\n", asked_, wrong_);
    return wrong_ == 0 && asked_ >= 300 ? 0 : 1;
  }

 private:
  std::map<std::string, int> known_;
  std::map<std::string, int> errors_;
  int asked_ = 0, wrong_ = 0;
};

void compare(Comparison& comparison, Resolver& resolver, const std::string& configuration,
             const std::vector<Question>& questions) {
  // glibc's are asked on this thread, which is no hub's then.
  std::vector<std::string> theirs;
  for (const Question& question : questions)
    theirs.push_back(ask_glibc(question));
  const auto done = runloom::run([&] {
    (void)resolver.reload();
    for (std::size_t i = 0; i < questions.size(); ++i)
      comparison.check(describe(configuration, questions[i]), theirs[i],
                       ask_ours(resolver, questions[i]));
  });
  if (!done) std::abort();
}

std::vector<Question> plain_questions() {
  std::vector<Question> out;
  for (const auto& names :
       {std::span<const char* const>(kServerNames), std::span<const char* const>(kHostNames)})
    for (const char* name : names)
      for (const int family : kFamilies)
        for (const int flags : kFlags)
          out.push_back({name, "80", family, flags});
  for (const char* number : kNumbers)
    for (const int family : kFamilies)
      for (const int flags : {0, AI_CANONNAME, AI_V4MAPPED, AI_NUMERICHOST})
        out.push_back({number, nullptr, family, flags});
  for (const char* service : kServices)
    for (const int socktype :
         {0, int{SOCK_STREAM}, int{SOCK_DGRAM}, int{SOCK_RAW}, int{SOCK_SEQPACKET}, 99})
      for (const char* host : {static_cast<const char*>(nullptr), "127.0.0.1", "*"})
        for (const int flags : {0, AI_PASSIVE, AI_NUMERICSERV})
          out.push_back({host, service, AF_UNSPEC, flags, socktype});
  for (const int protocol : {IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP, IPPROTO_ICMP})
    for (const int socktype : {0, int{SOCK_STREAM}, int{SOCK_DGRAM}, int{SOCK_RAW}})
      for (const char* service : {static_cast<const char*>(nullptr), "80", "http"})
        out.push_back({"127.0.0.1", service, AF_UNSPEC, 0, socktype, protocol});
  out.push_back({"v4.test", "80", 99});
  out.push_back({"v4.test", "80", AF_UNIX});
  out.push_back({"v4.test", "80", AF_UNSPEC, 1 << 20});
  out.push_back({nullptr, "80", AF_UNSPEC, AI_CANONNAME});
  out.push_back({nullptr, nullptr});
  out.push_back({"", "80"});
  out.push_back({".", "80"});
  out.push_back({"silent.test", "80"});
  return out;
}

std::string name_glibc(const net::Address& address, int flags) {
  char host[NI_MAXHOST], service[NI_MAXSERV];
  const int code = ::getnameinfo(address.data(), address.size(), host, sizeof host, service,
                                 sizeof service, flags);
  return code != 0 ? std::to_string(code) : std::string(host) + ' ' + service;
}

void compare_names(Comparison& comparison, Resolver& resolver) {
  for (const char* text : {"192.0.2.1:80", "192.0.2.2:80", "192.0.2.7:80", "127.0.0.1:53",
                           "192.0.2.21:9999", "[::1]:443", "[fe80::1%lo]:123", "[2001:db8::1]:80"})
    for (const int flags :
         {0, NI_NUMERICHOST, NI_NUMERICSERV, NI_NUMERICHOST | NI_NUMERICSERV, int{NI_DGRAM},
          int{NI_NAMEREQD}, NI_NAMEREQD | NI_NUMERICHOST, NI_NOFQDN, 1 << 20}) {
      const auto address = net::Address::parse(text).value();
      const auto ours = runloom::run([&] { return resolver.getnameinfo(address, flags); });
      comparison.check("getnameinfo " + std::string(text) + " flags " + std::to_string(flags),
                       name_glibc(address, flags),
                       ours ? ours->host + ' ' + ours->service : std::to_string(eai(ours.error())));
    }
}

// A network of its own, and the test's files in place of the system's.
bool enter_namespace(const DnsFiles& files) {
  if (::unshare(CLONE_NEWNS | CLONE_NEWNET) != 0) return false;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  for (const char* name :
       {"resolv.conf", "hosts", "services", "nsswitch.conf", "host.conf", "gai.conf"}) {
    const std::string target = std::string("/etc/") + name;
    if (::mount(files.path(name).c_str(), target.c_str(), nullptr, MS_BIND, nullptr) != 0)
      return false;
  }
  return std::system(
             "ip link set lo up && ip addr add 192.0.2.2/24 dev lo && "
             "ip -6 addr add 2001:db8::2/64 dev lo && ip route add default dev lo && "
             "ip -6 route add default dev lo") == 0;
}

int compare_all() {
  DnsFiles files;
  const std::string base = "nameserver 127.0.0.1\noptions timeout:1 attempts:1";
  const auto resolv = [&](const std::string& more) { files.overwrite("resolv.conf", base + more); };
  resolv("\n");
  files.overwrite("hosts",
                  "127.0.0.1 localhost\n::1 localhost\n192.0.2.20 h4\n2001:db8::20 h6\n"
                  "192.0.2.21 HBoth.test hboth\n2001:db8::21 hboth\n192.0.2.22 hmulti\n"
                  "192.0.2.23 hmulti\n192.0.2.24 first.test alias\n::ffff:192.0.2.25 mapped\n"
                  "::1 six-loop\n");
  if (!enter_namespace(files)) return kCannot;
  const DnsServer server(&answer, net::Address::loopback_ipv4(53));
  auto options = files.options();
  options.timeout = {};
  options.dead_server = {};
  Resolver resolver(options);
  Comparison comparison(differences_file());

  compare(comparison, resolver, "plain", plain_questions());
  compare_names(comparison, resolver);
  const std::vector<Question> searched{{"both"},
                                       {"here"},
                                       {"third"},
                                       {"nowhere"},
                                       {"v4.test"},
                                       {"v4.test."},
                                       {"servfail"},
                                       {"a.b"},
                                       {"both."},
                                       {"here", nullptr, AF_INET},
                                       {"both", nullptr, AF_INET6},
                                       {"both", nullptr, AF_UNSPEC, AI_CANONNAME}};
  for (const char* more : {"\nsearch one.test two.test\n", " ndots:0\nsearch one.test two.test\n",
                           " ndots:5\nsearch one.test two.test\n", "\nsearch test\n",
                           "\nsearch .\n", "\ndomain test\n", " no-aaaa\nsearch test\n",
                           " edns0\nsearch test\n", " use-vc\nsearch test\n",
                           " single-request\nsearch test\n", " no-tld-query\nsearch one.test\n"}) {
    resolv(more);
    compare(comparison, resolver, more, searched);
  }
  resolv("\n");
  const std::vector<Question> sources{{"localhost"},    {"h4"},      {"h6", nullptr, AF_INET},
                                      {"both.test"},    {"nx.test"}, {"empty.test"},
                                      {"servfail.test"}};
  for (const char* hosts :
       {"hosts: dns files\n", "hosts: files\n", "hosts: dns\n", "",
        "hosts: files [NOTFOUND=return] dns\n", "hosts: dns [NOTFOUND=return] files\n",
        "hosts: dns [!UNAVAIL=return] files\n"}) {
    files.overwrite("nsswitch.conf", hosts);
    compare(comparison, resolver, "nsswitch " + std::string(hosts), sources);
  }
  // The order follows the routes and addresses at once.
  files.overwrite("nsswitch.conf", "hosts: files dns\n");
  const std::vector<Question> sorted{{"many.test"},
                                     {"both.test"},
                                     {"localhost"},
                                     {"many.test", "80", AF_INET6, AI_V4MAPPED | AI_ALL},
                                     {"many.test", "80", AF_UNSPEC, AI_ADDRCONFIG},
                                     {nullptr, "80", AF_UNSPEC, AI_PASSIVE}};
  for (const char* change :
       {"ip -6 route del default dev lo", "ip addr del 192.0.2.2/24 dev lo",
        "ip addr add 10.0.0.2/8 dev lo", "ip rule add to 10.0.0.0/8 prohibit",
        "ip -6 addr del 2001:db8::2/64 dev lo", "ip -6 rule add to fd00::/8 prohibit"}) {
    if (std::system(change) != 0) std::printf("%s failed\n", change);
    compare(comparison, resolver, change, sorted);
  }
  return comparison.finish();
}

TEST(DnsGlibc, D14NamesAreWhatGlibcSays) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may make the namespaces";
  const ChildEnd end = run_child(&compare_all);
  if (end.exited && end.code == kCannot) GTEST_SKIP() << "no namespaces here: " << end.out;
  EXPECT_TRUE(end.exited) << "signal " << end.signal;
  EXPECT_EQ(end.code, 0) << end.out;
  std::printf("%s\n", end.out.substr(end.out.rfind('\n', end.out.size() - 2) + 1).c_str());
}

}  // namespace
}  // namespace runloom::dns
