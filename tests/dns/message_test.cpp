#include "message.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "runloom/dns/error.hpp"

namespace runloom::dns {
namespace {

Bytes bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
using namespace std::string_literals;

TEST(DnsMessage, NamesAreEncoded) {
  EXPECT_EQ(text_of(encode_name("www.example").value()), "\3www\7example\0"s);
  EXPECT_EQ(text_of(encode_name("www.example.").value()), "\3www\7example\0"s);
  EXPECT_EQ(text_of(encode_name(".").value()), "\0"s);
  EXPECT_EQ(text_of(encode_name("").value()), "\0"s);
  EXPECT_EQ(text_of(encode_name("a\\.b.c").value()), "\3a.b\1c\0"s);
  EXPECT_EQ(text_of(encode_name("\\255\\000").value()), "\2\xff\0\0"s);
}

TEST(DnsMessage, NamesThatCannotBeEncodedAreRefused) {
  for (const std::string& name :
       {"a..b"s, ".a"s, std::string(64, 'x'), "a.b.."s, "\\"s, "\\25"s, "\\256"s, "a\0b"s, [] {
          std::string longest;
          for (int i = 0; i < 130; ++i)
            longest += "a.";
          return longest;
        }()})
    EXPECT_EQ(encode_name(name).error(), DnsErrc::malformed_name) << name;
  EXPECT_TRUE(encode_name(std::string(63, 'x')));
}

TEST(DnsMessage, AQuestionHasOneName) {
  const auto question = make_question("example", RecordType::aaaa).value();
  EXPECT_EQ(text_of(question), "\0\0\1\0\0\1\0\0\0\0\0\0\7example\0\0\x1c\0\1"s);
  EXPECT_EQ(question_end(question), question.size());
  const auto with_edns = make_question("example", RecordType::a, {.edns = true}).value();
  EXPECT_EQ(with_edns.size(), question.size() + 11);
  EXPECT_EQ(question_end(with_edns), question.size());
}

TEST(DnsMessage, NamesAreReadBack) {
  const std::string message = "\3www\7example\0\1a\xc0\4\2.\\\0"s;
  Reader reader(bytes_of(message));
  EXPECT_EQ(reader.name(), "www.example");
  EXPECT_EQ(reader.name(), "a.example");
  EXPECT_EQ(reader.name(), "\\.\\\\");
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.left(), 0u);
}

TEST(DnsMessage, PointersGoToTheFrontOnly) {
  for (const std::string& message : {"\xc0\0"s, "\xc0\2\xc0\0"s, "\1a\xc0\0"s, "\xc0"s, "\xc1\xff"s,
                                     "\x40"
                                     "aaa\0"s,
                                     "\3ab"s, ""s}) {
    Reader reader(bytes_of(message));
    reader.name();
    EXPECT_FALSE(reader.ok());
  }
}

// D22: what a message of 64 KiB full of pointers costs is bounded by its size.
TEST(DnsMessage, D22ManyPointersEndSoon) {
  std::string message = "\0\0\x81\x80\0\1\xff\xff\0\0\0\0"s + "\1a\0\0\1\0\1"s;
  // Records whose name is a chain of pointers, each to the one before.
  std::string chain;
  const std::size_t base = message.size();
  chain += "\xc0\x0c"s;
  while (base + chain.size() + 2 < 0x3ff0) {
    const std::size_t before = base + chain.size() - 2;
    chain += static_cast<char>(0xc0 | before >> 8);
    chain += static_cast<char>(before & 0xff);
  }
  message += chain;
  const std::size_t last = message.size() - 2;
  while (message.size() + 12 < 65'535) {
    message += static_cast<char>(0xc0 | last >> 8);
    message += static_cast<char>(last & 0xff);
    message += "\0\1\0\1\0\0\0\0\0\0"s;
  }
  const auto answer = parse_answer(bytes_of(message));
  EXPECT_EQ(answer.error(), DnsErrc::bad_answer);
}

TEST(DnsMessage, ReadsEndAtTheEnd) {
  const std::string message = "\1\2\3"s;
  Reader reader(bytes_of(message));
  EXPECT_EQ(reader.u16(), 0x102);
  EXPECT_EQ(reader.u16(), 0);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.u8(), 0) << "once one has failed all do";
  Reader text(bytes_of(message));
  text.u8();
  EXPECT_EQ(text.short_text(), "");
  EXPECT_FALSE(text.ok());
}

TEST(DnsMessage, NamesAreComparedWithoutCase) {
  EXPECT_TRUE(same_name("WWW.Example", "www.eXAMPLE"));
  EXPECT_FALSE(same_name("www", "www."));
  EXPECT_FALSE(same_name("\xc4", "\xe4"));  // ASCII only
  EXPECT_EQ(lower("A\xc4Z"), "a\xc4z");
}

}  // namespace
}  // namespace runloom::dns
