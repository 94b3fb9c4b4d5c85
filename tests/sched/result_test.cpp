#include "runloom/sched/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace runloom {
namespace {

Result<int> half(int n) {
  if (n % 2) return fail_errno(EINVAL);
  return n / 2;
}

Result<std::string> quarter(int n) {
  RUNLOOM_TRY(int once, half(n));
  RUNLOOM_TRY(int twice, half(once));
  return std::to_string(twice);
}

TEST(Result, HoldsAValueOrAnError) {
  auto good = half(4);
  ASSERT_TRUE(good);
  EXPECT_TRUE(good.has_value());
  EXPECT_EQ(*good, 2);
  EXPECT_EQ(good.value(), 2);
  EXPECT_FALSE(good.error());
  auto bad = half(3);
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error(), std::errc::invalid_argument);
  EXPECT_THROW((void)bad.value(), std::system_error);
  EXPECT_EQ(bad.value_or(9), 9);
  EXPECT_EQ(good.value_or(9), 2);
}

TEST(Result, TryReturnsTheFirstError) {
  EXPECT_EQ(*quarter(8), "2");
  EXPECT_EQ(quarter(6).error(), std::errc::invalid_argument);
}

TEST(Result, MovesAndCopiesEitherSide) {
  Result<std::unique_ptr<int>> owner(std::make_unique<int>(5));
  Result<std::unique_ptr<int>> taken(std::move(owner));
  EXPECT_EQ(**taken, 5);
  taken = Result<std::unique_ptr<int>>(fail(Errc::closed));
  EXPECT_EQ(taken.error(), Errc::closed);
  taken = Result<std::unique_ptr<int>>(std::make_unique<int>(6));
  EXPECT_EQ(**taken, 6);

  Result<std::string> text(std::string(100, 'x'));
  Result<std::string> copy(text);
  EXPECT_EQ(*copy, *text);
  copy = fail(Errc::timed_out);
  copy = text;
  EXPECT_EQ(copy->size(), 100u);
  const auto& same = copy;
  copy = same;
  EXPECT_EQ(copy->size(), 100u);
}

TEST(Result, Combinators) {
  EXPECT_EQ(*half(8).and_then(half), 2);
  EXPECT_EQ(half(7).and_then(half).error(), std::errc::invalid_argument);
  EXPECT_EQ(*half(8).transform([](int n) { return n + 0.5; }), 4.5);
  EXPECT_EQ(half(7).transform([](int n) { return n + 0.5; }).error(), std::errc::invalid_argument);
  EXPECT_EQ(*half(7).or_else([](std::error_code) -> Result<int> { return 1; }), 1);
  EXPECT_EQ(*half(8).or_else([](std::error_code) -> Result<int> { return 1; }), 4);
}

TEST(Result, VoidResult) {
  Result<void> good;
  EXPECT_TRUE(good);
  EXPECT_NO_THROW(good.value());
  Result<void> bad = fail(Errc::cancelled);
  EXPECT_FALSE(bad);
  EXPECT_THROW(bad.value(), std::system_error);
  EXPECT_EQ(*Result<void>().and_then([]() -> Result<int> { return 3; }), 3);
  EXPECT_EQ(Result<void>(bad).and_then([]() -> Result<int> { return 3; }).error(), Errc::cancelled);
  EXPECT_TRUE(Result<void>(bad).or_else([](std::error_code) { return Result<void>(); }));
}

TEST(Errc, HasMessagesAndStandardConditions) {
  EXPECT_STREQ(error_category().name(), "runloom");
  for (int code = static_cast<int>(Errc::cancelled); code <= static_cast<int>(Errc::unread_data);
       ++code) {
    const std::string text = error_category().message(code);
    EXPECT_FALSE(text.empty());
    EXPECT_NE(text, "unknown error") << code;
  }
  EXPECT_EQ(error_category().message(9999), "unknown error");
  EXPECT_EQ(make_error_code(Errc::cancelled), std::errc::operation_canceled);
  EXPECT_EQ(make_error_code(Errc::timed_out), std::errc::timed_out);
  EXPECT_EQ(make_error_code(Errc::closed), std::errc::bad_file_descriptor);
  EXPECT_EQ(make_error_code(Errc::deadlock), std::errc::resource_deadlock_would_occur);
  EXPECT_NE(make_error_code(Errc::not_in_fiber), std::errc::operation_canceled);
  // The operator who meets it must learn which knob it is.
  EXPECT_NE(make_error_code(Errc::map_limit).message().find("vm.max_map_count"), std::string::npos);
}

}  // namespace
}  // namespace runloom
