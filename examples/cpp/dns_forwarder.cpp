// Forwards DNS queries over UDP to another server.
//
//     build/release/examples/example_dns_forwarder --port 5353 9.9.9.9:53
//     dig -p 5353 @127.0.0.1 example.org
//
// Each query has a fiber and, for as long as it is out, a socket of its own: with the port that the
// kernel picks and an identifier of our own, an answer is hard to forge. A fiber asks, asks again
// when nothing came within half of the time, and gives up at its deadline, all in a straight line.
// At most `kMostQueries` are out; what comes beyond that is refused, so that a flood costs bounded
// memory.
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datagrams.hpp"
#include "runloom/sched/join_set.hpp"

using namespace runloom;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kMostQueries = 500;  // each has a descriptor, and 1,024 is a usual limit
constexpr std::size_t kMostBytes = 4096;   // of a query or an answer
constexpr auto kPatience = 2s;

// ---------------------------------------------------------------- messages, RFC 1035 section 4

constexpr std::size_t kHeader = 12;
// Where its parts stand.
constexpr std::size_t kFlags = 2, kQuestions = 4, kAnswers = 6, kAuthorities = 8, kExtras = 10;
enum Code : unsigned { kFormatError = 1, kServerFailure = 2, kRefused = 5 };

using Message = std::vector<std::byte>;

unsigned word(std::span<const std::byte> message, std::size_t at) {
  return std::to_integer<unsigned>(message[at]) << 8 | std::to_integer<unsigned>(message[at + 1]);
}
void set_word(std::span<std::byte> message, std::size_t at, unsigned value) {
  message[at] = static_cast<std::byte>(value >> 8);
  message[at + 1] = static_cast<std::byte>(value);
}

bool is_answer(std::span<const std::byte> message) {
  return (word(message, kFlags) & 0x8000) != 0;
}

// The one question of a message: a name of labels, its type and class. None where it has another
// number of them or ends too early.
std::optional<std::span<const std::byte>> question_of(std::span<const std::byte> message) {
  if (message.size() < kHeader || word(message, kQuestions) != 1) return std::nullopt;
  std::size_t at = kHeader;
  for (;;) {
    if (at >= message.size()) return std::nullopt;
    const auto label = std::to_integer<std::size_t>(message[at]);
    if (label > 63) return std::nullopt;  // a question has nothing to be a pointer to
    at += 1 + label;
    if (label == 0) break;
    if (at - kHeader > 255) return std::nullopt;
  }
  if (at + 4 > message.size()) return std::nullopt;
  return message.subspan(kHeader, at + 4 - kHeader);
}

// An answer that says nothing but the code: the query's header and, where it has one, its question.
Message short_answer(std::span<const std::byte> query, unsigned code, bool truncated = false) {
  const auto question = question_of(query);  // stands right behind the header
  const auto kept = query.first(kHeader + (question ? question->size() : 0));
  Message answer(kept.begin(), kept.end());
  // It is an answer, and we do recursion; opcode and the wish for it are the query's.
  const unsigned flags = 0x8080 | (word(query, kFlags) & 0x7900) | (truncated ? 0x0200 : 0);
  set_word(answer, kFlags, flags | code);
  set_word(answer, kQuestions, question ? 1 : 0);
  for (const std::size_t count : {kAnswers, kAuthorities, kExtras})
    set_word(answer, count, 0);
  return answer;
}

// ---------------------------------------------------------------- one query

unsigned random_id() {
  std::uint16_t id = 0;
  while (::getrandom(&id, sizeof id, 0) != sizeof id) {
  }
  return id;
}

// The other server's answer to the query, with the query's own identifier.
Result<Message> ask(const net::Address& upstream, std::span<const std::byte> query) {
  RUNLOOM_TRY(const auto endpoint, net::UdpEndpoint::connect(upstream));
  const auto question = question_of(query);
  const unsigned id = random_id();
  Message out(query.begin(), query.end());
  set_word(out, 0, id);
  const auto end = Deadline::after(kPatience);
  auto again = Deadline::after(kPatience / 2);
  if (auto sent = endpoint.send(out, end); !sent) return fail(sent.error());

  std::array<std::byte, kMostBytes> buffer;
  for (;;) {
    std::size_t full_size = 0;
    const auto size = endpoint.recv(buffer, Deadline::earlier(again, end), &full_size);
    if (!size && size.error() == Errc::timed_out && !again.is_never()) {
      again = Deadline::never();
      if (auto sent = endpoint.send(out, end); !sent) return fail(sent.error());
      continue;
    }
    if (!size) return fail(size.error());
    const auto answer = std::span(buffer).first(*size);
    if (answer.size() < kHeader || word(answer, 0) != id || !is_answer(answer)) continue;
    const auto same = question_of(answer);
    if (!same || !std::equal(same->begin(), same->end(), question->begin(), question->end()))
      continue;
    // What doesn't fit is asked for again over TCP, which is not ours.
    if (full_size > *size) return short_answer(query, 0, true);
    set_word(answer, 0, word(query, 0));
    return Message(answer.begin(), answer.end());
  }
}

Result<void> serve(const net::UdpEndpoint& endpoint, const net::Address& upstream) {
  std::array<std::byte, kMostBytes> buffer;
  const auto reply = [&](const Message& answer, const net::Address& client) {
    // Who does not get it asks again.
    [[maybe_unused]] const auto sent = endpoint.send_to(answer, client);
  };
  JoinSet<> queries;  // ends, and with it all of them, before what they use
  for (;;) {
    RUNLOOM_TRY(const net::Datagram got, endpoint.recv_from(buffer));
    const auto query = got.data();
    if (query.size() < kHeader || is_answer(query)) continue;  // never answer an answer
    if (got.truncated() || !question_of(query)) {
      reply(short_answer(query, kFormatError), got.peer);
    } else if (queries.size() >= kMostQueries) {
      reply(short_answer(query, kRefused), got.peer);
    } else {
      auto spawned = queries.spawn(
          [&, query = Message(query.begin(), query.end()), client = got.peer]() -> Result<void> {
            const auto answer = ask(upstream, query);
            if (!answer && answer.error() == Errc::cancelled) return {};
            reply(answer ? *answer : short_answer(query, kServerFailure), client);
            return {};
          });
      if (!spawned) reply(short_answer(query, kServerFailure), got.peer);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* usage = "example_dns_forwarder [--port N] [--hubs N] UPSTREAM:PORT";
  const auto arguments = example::parse(argc, argv, usage);
  std::string problem = "the upstream's address is missing";
  const auto upstream = arguments.rest.size() == 1
                            ? net::Address::parse(arguments.rest[0], &problem)
                            : Result<net::Address>(fail_errno(EINVAL));
  if (!upstream) {
    std::fprintf(stderr, "%s\nusage: %s\n", problem.c_str(), usage);
    return 2;
  }
  return example::serve_datagrams(
      arguments, [&](const net::UdpEndpoint& endpoint) { return serve(endpoint, *upstream); });
}
