// A caching name server for one's own machine: it answers from a hosts file, from its memory, and
// else from the servers behind it.
//
//     build/release/examples/example_dns_cache --port 5353 --upstream 192.0.2.53:53 --hosts
//     my-hosts dig @127.0.0.1 -p 5353 example.org
//
// One fiber a question. The resolver asks equal questions once, takes the next server when one is
// silent, and goes to TCP by itself. A name of the hosts file is answered with its addresses and
// with nothing else, whatever the servers know of it.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runloom/dns/resolver.hpp"
#include "runloom/net/signals.hpp"
#include "runloom/net/udp_endpoint.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/scheduler.hpp"

using namespace runloom;
using namespace std::chrono_literals;

namespace {

using Message = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostEntries = 10'000;
constexpr std::size_t kMostAtOnce = 1'000;  // questions that wait for a server
constexpr std::size_t kHeader = 12;

unsigned u16(std::span<const std::byte> message, std::size_t at) {
  return static_cast<unsigned>(message[at]) << 8 | static_cast<unsigned>(message[at + 1]);
}
void put16(Message& message, unsigned value) {
  message.push_back(static_cast<std::byte>(value >> 8));
  message.push_back(static_cast<std::byte>(value));
}
void set16(Message& message, std::size_t at, unsigned value) {
  message[at] = static_cast<std::byte>(value >> 8);
  message[at + 1] = static_cast<std::byte>(value);
}

// Where a name ends. Only of messages that parse_answer() has read, or up to the end.
std::size_t skip_name(std::span<const std::byte> message, std::size_t at) {
  while (at < message.size()) {
    const auto length = static_cast<std::size_t>(message[at]);
    if (length >= 0xc0) return at + 2;
    at += 1 + length;
    if (length == 0) return at;
  }
  return message.size() + 1;
}

// The question of a message that has exactly one.
struct Question {
  std::string name;  // in lower case, without the trailing dot
  unsigned type = 0;
  unsigned record_class = 0;
  std::size_t end = 0;
};
bool read_question(std::span<const std::byte> message, Question& question) {
  if (message.size() < kHeader || (static_cast<unsigned>(message[2]) & 0xf8) != 0 ||
      u16(message, 4) != 1 || u16(message, 6) != 0 || u16(message, 8) != 0)
    return false;
  std::size_t at = kHeader;
  while (at < message.size() && message[at] != std::byte{0}) {
    const auto length = static_cast<std::size_t>(message[at]);
    if (length > 63 || at + 1 + length >= message.size()) return false;
    if (!question.name.empty()) question.name += '.';
    for (std::size_t i = 1; i <= length; ++i) {
      const char c = static_cast<char>(message[at + i]);
      question.name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    at += 1 + length;
  }
  if (at + 5 > message.size()) return false;
  question.type = u16(message, at + 1);
  question.record_class = u16(message, at + 3);
  question.end = at + 5;
  return true;
}

// What is kept of an answer, and since when.
struct Kept {
  Message answer;
  Clock::time_point since, until;
};

class Cache {
 public:
  explicit Cache(dns::ResolverOptions options, dns::ResolverOptions hosts_only)
      : resolver_(std::move(options)), hosts_(std::move(hosts_only)) {}

  Result<Message> answer(std::span<const std::byte> question) {
    Question asked;
    if (!read_question(question, asked)) return fail_errno(EBADMSG);
    if (asked.record_class == 1)
      if (auto own = from_hosts(question, asked)) return *std::move(own);
    // The question alone goes on: what EDNS says is between neighbours. The case of the name is the
    // client's business, and comes back as it was sent.
    Message alone(question.begin(), question.begin() + static_cast<std::ptrdiff_t>(asked.end));
    set16(alone, 10, 0);
    question = alone;
    const std::string key(reinterpret_cast<const char*>(question.data()) + 2, question.size() - 2);
    if (auto kept = from_memory(key)) {
      std::copy_n(question.begin(), 2, kept->begin());
      return *std::move(kept);
    }
    auto answer = resolver_.exchange(question, Deadline::after(10s));
    if (!answer) {  // SERVFAIL
      Message failure(question.begin(), question.begin() + static_cast<std::ptrdiff_t>(asked.end));
      set16(failure, 2, 0x8182);
      set16(failure, 10, 0);
      return failure;
    }
    keep(key, *answer);
    return answer;
  }

  std::string report() const {
    const auto stats = resolver_.stats();
    return std::to_string(questions_) + " questions, " + std::to_string(hits_) + " from memory, " +
           std::to_string(own_) + " from the hosts file, " + std::to_string(stats.queries) +
           " asked";
  }

 private:
  // The hosts file is looked up by a resolver that has no other source.
  std::optional<Message> from_hosts(std::span<const std::byte> question, const Question& asked) {
    ++questions_;
    const auto found = hosts_.getaddrinfo(asked.name, std::nullopt, {.socktype = SOCK_STREAM});
    if (!found || net::Address::from_ip(asked.name, 0)) return std::nullopt;
    ++own_;
    Message out(question.begin(), question.begin() + static_cast<std::ptrdiff_t>(asked.end));
    set16(out, 2, 0x8580);  // an authoritative answer
    set16(out, 10, 0);
    unsigned count = 0;
    for (const dns::AddressInfo& info : *found) {
      const bool wanted = info.family == AF_INET ? asked.type == 1 : asked.type == 28;
      if (!wanted) continue;
      ++count;
      put16(out, 0xc00c);  // the question's name
      put16(out, asked.type);
      put16(out, 1);
      put16(out, 0);
      put16(out, 60);
      const auto* bytes =
          info.family == AF_INET
              ? reinterpret_cast<const std::byte*>(
                    &reinterpret_cast<const sockaddr_in*>(info.address.data())->sin_addr)
              : reinterpret_cast<const std::byte*>(
                    &reinterpret_cast<const sockaddr_in6*>(info.address.data())->sin6_addr);
      const std::size_t size = info.family == AF_INET ? 4 : 16;
      put16(out, static_cast<unsigned>(size));
      out.insert(out.end(), bytes, bytes + size);
    }
    set16(out, 6, count);
    return out;
  }

  std::optional<Message> from_memory(const std::string& key) {
    const auto it = kept_.find(key);
    if (it == kept_.end()) return std::nullopt;
    const auto now = Clock::now();
    if (now >= it->second.until) {
      kept_.erase(it);
      return std::nullopt;
    }
    ++hits_;
    Message answer = it->second.answer;
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(now - it->second.since);
    shorten(answer, static_cast<std::uint32_t>(age.count()));
    return answer;
  }

  // What every record has left to live. The answer was read whole before it was kept.
  static void shorten(Message& answer, std::uint32_t age) {
    std::size_t at = skip_name(answer, kHeader) + 4;
    const unsigned records = u16(answer, 6) + u16(answer, 8) + u16(answer, 10);
    for (unsigned i = 0; i < records; ++i) {
      at = skip_name(answer, at);
      if (at + 10 > answer.size()) return;
      if (u16(answer, at) != 41) {  // an EDNS record has something else there
        const std::uint32_t ttl = u16(answer, at + 4) << 16 | u16(answer, at + 6);
        const std::uint32_t left = ttl - std::min(ttl, age);
        set16(answer, at + 4, left >> 16);
        set16(answer, at + 6, left & 0xffff);
      }
      at += 10 + u16(answer, at + 8);
    }
  }

  void keep(const std::string& key, const Message& answer) {
    const auto parsed = dns::parse_answer(answer);
    if (!parsed || parsed->truncated || parsed->rcode != 0 || parsed->answers.empty()) return;
    std::uint32_t ttl = 3600;
    for (const dns::Record& record : parsed->answers)
      ttl = std::min(ttl, record.ttl);
    if (ttl == 0) return;
    if (kept_.size() >= kMostEntries) kept_.erase(kept_.begin());
    const auto now = Clock::now();
    kept_[key] = {answer, now, now + std::chrono::seconds(ttl)};
  }

  dns::Resolver resolver_;
  dns::Resolver hosts_;
  std::map<std::string, Kept> kept_;
  std::uint64_t questions_ = 0, hits_ = 0, own_ = 0;
};

Result<void> serve(const net::UdpEndpoint& endpoint, Cache& cache) {
  JoinSet<> questions;
  for (;;) {
    std::byte buffer[1500];
    auto datagram = endpoint.recv_from(buffer);
    if (!datagram) return Unexpected{datagram.error()};
    if (questions.size() >= kMostAtOnce) continue;  // the client asks again
    auto begun = questions.spawn(
        [&, peer = datagram->peer, question = Message(buffer, buffer + datagram->size)] {
          auto answer = cache.answer(question);
          if (!answer) return;
          if (answer->size() >
              1232) {  // too large for a datagram: the client comes by TCP, elsewhere
            answer->resize(skip_name(*answer, kHeader) + 4);
            set16(*answer, 2, u16(*answer, 2) | 0x0200);
            for (const std::size_t count : {6, 8, 10})
              set16(*answer, count, 0);
          }
          (void)endpoint.send_to(*answer, peer, Deadline::after(1s));
        },
        {.hub = 0});
    if (!begun) continue;
  }
}

}  // namespace

int main(int argc, char** argv) {
  dns::ResolverOptions options, hosts;
  std::uint16_t port = 0;
  std::string problem =
      "usage: example_dns_cache [--port N] [--upstream ADDRESS:PORT]... [--hosts FILE]";
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--port" &&
        std::from_chars(value.data(), value.data() + value.size(), port).ec == std::errc()) {
      continue;
    } else if (name == "--hosts" && !value.empty()) {
      hosts.hosts = value;
      continue;
    } else if (name == "--upstream") {
      if (const auto server = net::Address::parse(value, &problem)) {
        options.servers.push_back(*server);
        continue;
      }
    }
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 2;
  }
  if (hosts.hosts == dns::ResolverOptions().hosts) hosts.hosts = "/dev/null";
  // No servers and no search list: what is not in the file is not there.
  hosts.nsswitch = hosts.resolv_conf = "/dev/null";
  hosts.sources = {"files"};

  const net::Signals signals({SIGINT, SIGTERM});
  Cache cache(std::move(options), std::move(hosts));
  const auto served = runloom::run([&]() -> Result<void> {
    RUNLOOM_TRY(auto endpoint, net::UdpEndpoint::bind(net::Address::loopback_ipv4(port)));
    RUNLOOM_TRY(const auto address, endpoint.local_address());
    std::printf("listening on %s\n", address.to_string().c_str());
    std::fflush(stdout);
    auto server = spawn([&] { return serve(endpoint, cache); }, {.hub = 0});
    RUNLOOM_TRY([[maybe_unused]] const int signal, signals.wait());
    server.cancel();
    (void)server.join();
    return {};
  });
  if (!served) {
    std::fprintf(stderr, "%s\n", served.error().message().c_str());
    return 1;
  }
  std::printf("%s\n", cache.report().c_str());
  return 0;
}
