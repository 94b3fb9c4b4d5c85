#include "stand_in.hpp"

#include <gtest/gtest.h>

#include "runloom/dns/error.hpp"
#include "support/dns_server.hpp"

namespace runloom::dns {
namespace {

using test::DnsQuestion;
using test::DnsReply;

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> question_of(std::string_view name, RecordType type, bool edns = false) {
  auto question = make_question(name, type, {.edns = edns}).value();
  set_id(question, 0x1234);
  return question;
}

DnsReply reply_to(const std::vector<std::byte>& question, std::string_view name, RecordType type) {
  DnsQuestion asked;
  asked.name = name;
  asked.type = type;
  asked.message.assign(reinterpret_cast<const char*>(question.data()), question.size());
  return DnsReply(asked);
}

TEST(DnsStandIn, AQuestionHasANumber) {
  for (const std::uint32_t number : {0u, 1u, 0x89abcdefu, 0xffffffffu}) {
    std::vector<std::byte> message;
    put_stand_in_question(message, 0xfeed, number);
    const auto read = read_stand_in(message);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->id, 0xfeed);
    EXPECT_EQ(read->number, number);
    EXPECT_EQ(question_end(message), message.size()) << "well formed";
    // Cut short, or of another name, it is none.
    EXPECT_FALSE(read_stand_in(Bytes(message).first(message.size() - 1)));
    message[kHeaderSize + 3] = std::byte{'z'};
    EXPECT_FALSE(read_stand_in(message));
  }
  EXPECT_FALSE(read_stand_in(question_of("www.example.test", RecordType::a)));
}

TEST(DnsStandIn, AnAnswerHasTheHeadAndNoRecord) {
  const auto question = question_of("www.test", RecordType::a);
  const auto answer = bytes_of(
      reply_to(question, "www.test", RecordType::a).a("192.0.2.1").rcode(3).truncated().bytes());
  std::vector<std::byte> stand_in;
  put_stand_in_answer(stand_in, answer, 77);
  EXPECT_EQ(read_stand_in(stand_in)->number, 77u);
  const auto read = parse_answer(stand_in);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->rcode, 3);
  EXPECT_TRUE(read->truncated);
  EXPECT_TRUE(read->answers.empty());
}

// D24: what may be an answer.
TEST(DnsStandIn, D24OnlyItsOwnQuestionIsAnswered) {
  const auto question = question_of("www.test", RecordType::https);
  const auto reply = [&] { return reply_to(question, "www.test", RecordType::https); };
  const auto answered = [&](const DnsReply& said) {
    return answers(question, bytes_of(said.bytes()));
  };
  EXPECT_TRUE(answered(reply()));
  EXPECT_TRUE(answered(reply().question("WWW.Test", RecordType::https)));
  EXPECT_FALSE(answered(reply().question("www.tess", RecordType::https)));
  EXPECT_FALSE(answered(reply().question("www.test.x", RecordType::https)));
  // 65 and 97 are one letter in two cases, and two types.
  EXPECT_FALSE(answered(reply().question("www.test", static_cast<RecordType>(97))));
  EXPECT_FALSE(answers(question, question)) << "a question is no answer";
  EXPECT_FALSE(answers(question, {}));
  // Who can't serve a question may leave it out; who can, may not.
  for (const int rcode : {1, 2, 4, 5})
    EXPECT_TRUE(answered(reply().no_question().rcode(rcode))) << rcode;
  for (const int rcode : {0, 3, 6})
    EXPECT_FALSE(answered(reply().no_question().rcode(rcode))) << rcode;
}

TEST(DnsStandIn, TheEdnsRecordCanBeLeftOut) {
  const auto plain = question_of("www.test", RecordType::a);
  const auto edns = question_of("www.test", RecordType::a, true);
  EXPECT_GT(edns.size(), plain.size());
  EXPECT_EQ(without_records(edns).size(), plain.size());
  EXPECT_EQ(without_records(plain).size(), plain.size());
}

// D08: however the pieces of a stream are cut, its messages are the same.
TEST(DnsMessageStream, D08PiecesOfAnySize) {
  std::vector<std::byte> stream;
  const std::vector<std::size_t> sizes{1, 0, 300, 65'535, 2, 512};
  for (const std::size_t size : sizes)
    put_framed(stream, std::vector<std::byte>(size, static_cast<std::byte>(size)));
  for (const std::size_t piece : {1, 2, 3, 511, 70'000}) {
    MessageStream messages;
    std::vector<std::size_t> found;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      messages.append(Bytes(stream).subspan(at, std::min(piece, stream.size() - at)));
      while (const auto message = messages.next()) {
        found.push_back(message->size());
        for (const std::byte b : *message)
          ASSERT_EQ(b, static_cast<std::byte>(message->size()));
      }
    }
    EXPECT_EQ(found, sizes) << piece;
  }
}

}  // namespace
}  // namespace runloom::dns
