#include "cache.hpp"

#include <gtest/gtest.h>

#include <arpa/inet.h>

namespace runloom::dns {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kSecond = 1'000'000'000;

std::shared_ptr<const Answer> answer(std::uint32_t ttl, int rcode = 0) {
  auto out = std::make_shared<Answer>();
  out->rcode = rcode;
  Record record;
  record.ttl = ttl;
  if (rcode == 0) {
    record.type = RecordType::a;
    record.data = in_addr{};
    out->answers.push_back(record);
  } else {
    record.type = RecordType::soa;
    record.data = SoaData{{}, {}, 0, 0, 0, 0, ttl};
    out->authorities.push_back(record);
  }
  return out;
}

TEST(DnsCache, AnswersAgeAndEnd) {
  Cache cache(10, 3600s);
  cache.add("Name.test.", RecordType::a, answer(100), 0);
  EXPECT_EQ(cache.find("other.test", RecordType::a, 0), nullptr);
  EXPECT_EQ(cache.find("name.test", RecordType::aaaa, 0), nullptr);
  EXPECT_EQ(cache.find("name.TEST", RecordType::a, kSecond / 2)->answers[0].ttl, 100u);
  EXPECT_EQ(cache.find("name.test", RecordType::a, 40 * kSecond)->answers[0].ttl, 60u);
  EXPECT_NE(cache.find("name.test", RecordType::a, 100 * kSecond - 1), nullptr);
  EXPECT_EQ(cache.find("name.test", RecordType::a, 100 * kSecond), nullptr);
  EXPECT_EQ(cache.size(), 0u);
}

TEST(DnsCache, TheLongestTimeIsTheCaches) {
  Cache cache(10, 5s);
  cache.add("a", RecordType::a, answer(100), 0);
  EXPECT_EQ(cache.find("a", RecordType::a, 5 * kSecond), nullptr);
}

TEST(DnsCache, TheLeastLatelyUsedGoes) {
  Cache cache(2, 3600s);
  for (const char* name : {"a", "b"})
    cache.add(name, RecordType::a, answer(100), 0);
  EXPECT_NE(cache.find("a", RecordType::a, 0), nullptr);
  cache.add("c", RecordType::a, answer(100), 0);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.find("b", RecordType::a, 0), nullptr);
  EXPECT_NE(cache.find("a", RecordType::a, 0), nullptr);
  cache.add("a", RecordType::a, answer(7), 0);
  EXPECT_EQ(cache.find("a", RecordType::a, 0)->answers[0].ttl, 7u);
  cache.clear();
  EXPECT_EQ(cache.size(), 0u);
}

TEST(DnsCache, WhatMayBeKept) {
  EXPECT_EQ(lifetime(*answer(7)), 7u);
  EXPECT_EQ(lifetime(*answer(7, 3)), 7u);
  EXPECT_EQ(lifetime(*answer(7, 2)), std::nullopt);
  EXPECT_EQ(lifetime(*answer(1'000'000, 3)), 3u * 3600);
  Answer cut = *answer(7);
  cut.truncated = true;
  EXPECT_EQ(lifetime(cut), std::nullopt);
  EXPECT_EQ(lifetime(Answer{}), std::nullopt);
  Cache none(0, 3600s);
  none.add("a", RecordType::a, answer(7), 0);
  EXPECT_EQ(none.find("a", RecordType::a, 0), nullptr);
}

}  // namespace
}  // namespace runloom::dns
