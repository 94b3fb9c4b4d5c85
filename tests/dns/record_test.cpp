#include "runloom/dns/record.hpp"

#include <gtest/gtest.h>

#include "runloom/dns/error.hpp"
#include "support/dns_server.hpp"

namespace runloom::dns {
namespace {

using test::be16;
using test::be32;
using test::DnsReply;
using namespace std::string_literals;

test::DnsQuestion question(RecordType type) {
  test::DnsQuestion out;
  out.name = "x.test";
  out.type = type;
  out.message = "\x12\x34\1\0\0\1\0\0\0\0\0\0"s + DnsReply::encode("x.test") +
                be16(static_cast<unsigned>(type)) + be16(1);
  return out;
}

Result<Answer> parse(const DnsReply& reply) {
  const std::string bytes = reply.bytes();
  return parse_answer(std::as_bytes(std::span(bytes)));
}

// The data of a record, and what it reads as.
struct Case {
  RecordType type;
  std::string data;
  std::string text;
};

TEST(DnsRecord, EveryTypeIsRead) {
  const Case cases[] = {
      {RecordType::a, "\xc0\0\2\1"s, "192.0.2.1"},
      {RecordType::aaaa, "\x20\1\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\1"s, "2001:db8::1"},
      {RecordType::cname, DnsReply::encode("y.test"), "y.test."},
      {RecordType::ns, DnsReply::encode("ns.test"), "ns.test."},
      {RecordType::ptr, DnsReply::encode("host.test"), "host.test."},
      {RecordType::mx, be16(10) + DnsReply::encode("mail.test"), "10 mail.test."},
      {RecordType::txt, "\3a\"b\2c\x01"s, R"("a\"b" "c\001")"},
      {RecordType::srv, be16(1) + be16(2) + be16(443) + DnsReply::encode("s.test"),
       "1 2 443 s.test."},
      {RecordType::caa, "\x80\5issueca.test"s, R"(128 issue "ca.test")"},
      {RecordType::soa,
       DnsReply::encode("ns.test") + DnsReply::encode("h.test") + be32(1) + be32(2) + be32(3) +
           be32(4) + be32(5),
       "ns.test. h.test. 1 2 3 4 5"},
      {RecordType::https,
       be16(1) + "\0"s + be16(1) + be16(6) + "\2h3\2h2"s + be16(3) + be16(2) + be16(8443) +
           be16(4) + be16(4) + "\xc0\0\2\1"s + be16(9) + be16(1) + "x",
       R"(1 . alpn="h3,h2" port=8443 ipv4hint=192.0.2.1 key9="x")"},
      {RecordType::svcb, be16(0) + DnsReply::encode("other.test"), "0 other.test."},
      {static_cast<RecordType>(999), "\1\xff"s, "\\# 2 01ff"},
  };
  for (const Case& one : cases) {
    const auto type = static_cast<std::uint16_t>(one.type);
    const auto answer = parse(DnsReply(question(one.type)).record({}, type, one.data, 60));
    ASSERT_TRUE(answer) << one.text;
    ASSERT_EQ(answer->answers.size(), 1u) << one.text;
    EXPECT_EQ(data_text(answer->answers[0]), one.text);
    EXPECT_EQ(to_string(answer->answers[0]),
              "x.test. 60 IN " + to_string(one.type) + ' ' + one.text);
    // Cut at every place it is a bad answer, or a shorter one of its kind, and never more.
    for (std::size_t size = 0; size < one.data.size(); ++size) {
      const auto cut =
          parse(DnsReply(question(one.type)).record({}, type, one.data.substr(0, size)));
      EXPECT_TRUE(cut || cut.error() == DnsErrc::bad_answer);
    }
  }
}

TEST(DnsRecord, TheHeaderIsRead) {
  const auto answer =
      parse(DnsReply(question(RecordType::a)).rcode(3).authoritative().truncated().soa(17));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->name, "x.test");
  EXPECT_EQ(answer->type, RecordType::a);
  EXPECT_EQ(answer->rcode, 3);
  EXPECT_TRUE(answer->authoritative);
  EXPECT_TRUE(answer->truncated);
  EXPECT_TRUE(answer->recursion_available);
  EXPECT_FALSE(answer->authenticated);
  ASSERT_EQ(answer->authorities.size(), 1u);
  EXPECT_EQ(std::get<SoaData>(answer->authorities[0].data).minimum, 17u);
}

TEST(DnsRecord, ATruncatedAnswerGivesWhatItHolds) {
  const std::string whole =
      DnsReply(question(RecordType::a)).truncated().a("192.0.2.1").a("192.0.2.2").bytes();
  const std::string cut = whole.substr(0, whole.size() - 3);
  const auto answer = parse_answer(std::as_bytes(std::span(cut)));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->answers.size(), 1u);
}

TEST(DnsRecord, WhatIsNoAnswerIsRefused) {
  const std::string question_bytes = question(RecordType::a).message;
  EXPECT_EQ(parse_answer(std::as_bytes(std::span(question_bytes))).error(), DnsErrc::bad_answer);
  const std::string whole = DnsReply(question(RecordType::a)).a("192.0.2.1").bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string cut = whole.substr(0, size);
    EXPECT_EQ(parse_answer(std::as_bytes(std::span(cut))).error(), DnsErrc::bad_answer) << size;
  }
}

TEST(DnsRecord, TypesHaveNames) {
  for (const RecordType type : {RecordType::a, RecordType::https, RecordType::caa})
    EXPECT_EQ(parse_record_type(to_string(type)).value(), type);
  EXPECT_EQ(parse_record_type("aaaa").value(), RecordType::aaaa);
  EXPECT_EQ(to_string(static_cast<RecordType>(1234)), "TYPE1234");
  EXPECT_EQ(parse_record_type("type1234").value(), static_cast<RecordType>(1234));
  for (const char* bad : {"", "B", "TYPE", "TYPE70000", "TYPE1x"})
    EXPECT_FALSE(parse_record_type(bad)) << bad;
}

}  // namespace
}  // namespace runloom::dns
