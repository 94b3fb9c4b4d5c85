#include "symbolize.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace runloom::detail {

namespace {
[[gnu::noinline]] int hidden_function(int x) {
  return x * 3 + 1;
}
}  // namespace

TEST(Symbolize, NamesFunctionsThatAreNotExported) {
  volatile int used = hidden_function(1);
  (void)used;
  const std::string text = describe_frame(reinterpret_cast<void*>(&hidden_function), false);
  EXPECT_NE(text.find("hidden_function(int)+0x0 ("), std::string::npos) << text;
}

TEST(Symbolize, NamesFunctionsOfLibraries) {
  const std::string text = describe_frame(::dlsym(RTLD_DEFAULT, "getenv"), false);
  EXPECT_NE(text.find("getenv+0x0 ("), std::string::npos) << text;
  EXPECT_NE(text.find(".so"), std::string::npos) << text;
}

TEST(Symbolize, ReturnAddressBelongsToTheCallBeforeIt) {
  auto* end = reinterpret_cast<char*>(&hidden_function) + 1;
  const std::string text = describe_frame(end, true);
  EXPECT_NE(text.find("hidden_function(int)+0x0 ("), std::string::npos) << text;
}

TEST(Symbolize, UnknownAddressesAreNumbers) {
  EXPECT_EQ(describe_frame(reinterpret_cast<void*>(0x1234), false), "0x1234");
  EXPECT_EQ(describe_frame(nullptr, true), "0x0");
}

}  // namespace runloom::detail
