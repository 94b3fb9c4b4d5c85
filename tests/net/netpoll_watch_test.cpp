// Netpoll::watch: a descriptor of a layer above ends a poll that blocks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "runloom/net/netpoll.hpp"

namespace runloom::net {
namespace {

struct Backend {
  const char* name;
  Result<std::unique_ptr<Netpoll>> (*make)();
};

class NetpollWatch : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    auto made = GetParam().make();
    ASSERT_TRUE(made) << made.error().message();
    netpoll = std::move(*made);
    ASSERT_EQ(::pipe(pipe), 0);
  }
  void TearDown() override {
    ::close(pipe[0]);
    ::close(pipe[1]);
  }
  Netpoll::Watcher watcher() {
    return {pipe[0], [](void* self) { static_cast<NetpollWatch*>(self)->read_one(); }, this};
  }
  void read_one() {
    char byte;
    ASSERT_EQ(::read(pipe[0], &byte, 1), 1);
    seen += byte;
  }

  std::unique_ptr<Netpoll> netpoll;
  int pipe[2] = {-1, -1};
  std::string seen;
};

TEST_P(NetpollWatch, EndsPollAndIsRead) {
  ASSERT_TRUE(netpoll->watch(watcher()));
  ASSERT_EQ(::write(pipe[1], "a", 1), 1);
  netpoll->poll(-1);
  EXPECT_EQ(seen, "a");
  netpoll->poll(0);
  EXPECT_EQ(seen, "a");
  ASSERT_EQ(::write(pipe[1], "b", 1), 1);
  netpoll->poll(-1);
  EXPECT_EQ(seen, "ab");
}

TEST_P(NetpollWatch, IsNotCalledOnceTakenBack) {
  ASSERT_TRUE(netpoll->watch(watcher()));
  ASSERT_TRUE(netpoll->watch({}));
  ASSERT_EQ(::write(pipe[1], "a", 1), 1);
  netpoll->wake();
  netpoll->poll(-1);
  EXPECT_EQ(seen, "");
  // It may be watched again.
  ASSERT_TRUE(netpoll->watch(watcher()));
  netpoll->poll(-1);
  EXPECT_EQ(seen, "a");
}

TEST_P(NetpollWatch, IsNoReasonForABusyHubToPoll) {
  ASSERT_TRUE(netpoll->watch(watcher()));
  EXPECT_FALSE(netpoll->wants_poll());
}

INSTANTIATE_TEST_SUITE_P(Backends, NetpollWatch,
                         testing::Values(Backend{"epoll", &make_epoll_netpoll},
                                         Backend{"poll", &make_poll_netpoll}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace runloom::net
