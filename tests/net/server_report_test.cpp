#include "server_report.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace runloom::net {
namespace {

TEST(ReportLimit, OneASecondAndTheRestIsCounted) {
  ReportLimit limit;
  const std::int64_t second = ReportLimit::kInterval;
  EXPECT_EQ(limit.pass(0), 0u);
  EXPECT_EQ(limit.pass(1), std::nullopt);
  EXPECT_EQ(limit.pass(second - 1), std::nullopt);
  EXPECT_EQ(limit.pass(second), 2u);
  EXPECT_EQ(limit.pass(second + 1), std::nullopt);
  EXPECT_EQ(limit.pass(5 * second), 1u);
  EXPECT_EQ(limit.pass(6 * second), 0u);
}

TEST(ReportLimitRace, NoReportIsLost) {
  ReportLimit limit;
  std::atomic<std::uint64_t> passed{0};
  std::atomic<std::uint64_t> left_out{0};
  std::vector<std::thread> threads;
  constexpr int kThreads = 4;
  constexpr std::int64_t kEach = 20'000;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t i = 0; i < kEach; ++i) {
        if (const auto n = limit.pass(i * ReportLimit::kInterval / 100)) {
          ++passed;
          left_out += *n;
        }
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  if (const auto n = limit.pass(kEach * ReportLimit::kInterval)) left_out += *n;
  EXPECT_EQ(passed + left_out, static_cast<std::uint64_t>(kThreads * kEach));
  // Threads that run one after the other find the time of the others in the future.
  EXPECT_LE(passed, static_cast<std::uint64_t>(kEach / 100 + 1));
}

TEST(FaultLog, CountsAllAndReportsTheFirst) {
  std::vector<std::string> texts;
  FaultLog log([&](const ServerReport& report) {
    texts.push_back(std::string(to_string(report.fault)) + ": " + std::string(report.text));
  });
  const Address peer = Address::loopback_ipv4(7);
  for (int i = 0; i < 100; ++i) {
    log.add(ServerFault::accept, errno_code(EMFILE), Address());
    log.add(ServerFault::handler_exception, {}, peer,
            std::make_exception_ptr(std::runtime_error("boom")));
  }
  EXPECT_EQ(log.count(ServerFault::accept), 100u);
  EXPECT_EQ(log.count(ServerFault::handler_exception), 100u);
  EXPECT_EQ(log.count(ServerFault::no_fiber), 0u);
  ASSERT_GE(texts.size(), 2u);
  EXPECT_EQ(texts[0], "accept failed, will try again: Too many open files");
  EXPECT_EQ(texts[1], "a handler threw, its connection was closed: boom");
  EXPECT_LE(texts.size(), 100u);
}

TEST(FaultLog, PrintsALineWithThePeer) {
  FaultLog log(nullptr);
  testing::internal::CaptureStderr();
  log.add(ServerFault::handler_exception, {}, Address::loopback_ipv4(7),
          std::make_exception_ptr(3));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "runloom: server: a handler threw, its connection was closed: an exception that is no "
            "std::exception (client 127.0.0.1:7)\n");
}

TEST(FaultLog, SurvivesAReportThatThrows) {
  FaultLog log([](const ServerReport&) { throw std::runtime_error("no"); });
  testing::internal::CaptureStderr();
  log.add(ServerFault::accept, errno_code(EMFILE), Address());
  EXPECT_NE(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(log.count(ServerFault::accept), 1u);
}

TEST(ServerStats, NamesWhatHappened) {
  ServerStats stats;
  stats.accepted = 3;
  EXPECT_EQ(to_string(stats), "accepted 3, active 0, rejected 0, cancelled 0");
  stats.faults[static_cast<std::size_t>(ServerFault::no_fiber)] = 2;
  EXPECT_EQ(to_string(stats),
            "accepted 3, active 0, rejected 0, cancelled 0; no fiber for a connection, which was "
            "closed: 2");
}

}  // namespace
}  // namespace runloom::net
