// Row G02: signals in great number, with handlers, while connections are served.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "support/net_test.hpp"
#include "support/race.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;

std::atomic<long> handled[2];

// Counts SIGUSR1 and SIGUSR2 while it lives. No SA_RESTART: system calls end with EINTR.
class CountSignals {
 public:
  CountSignals() {
    handled[0] = handled[1] = 0;
    struct sigaction action {};
    action.sa_handler = [](int signal) { ++handled[signal == SIGUSR1 ? 0 : 1]; };
    EXPECT_EQ(::sigaction(SIGUSR1, &action, &before_[0]), 0);
    EXPECT_EQ(::sigaction(SIGUSR2, &action, &before_[1]), 0);
  }
  ~CountSignals() {
    ::sigaction(SIGUSR1, &before_[0], nullptr);
    ::sigaction(SIGUSR2, &before_[1], nullptr);
  }

 private:
  struct sigaction before_[2];
};

NET_TEST(SignalRace, SignalsEndNoOperationG02) {
  CountSignals count;
  std::atomic<bool> over{false};
  const pthread_t target = ::pthread_self();  // hub 0, the only thread of ours that takes signals
  Listening listening;
  auto server = spawn([&] {
    for (;;) {
      auto stream = listening.listener.accept();
      if (!stream) return stream.error();
      go([stream = std::move(*stream)]() mutable {
        std::string piece(512, '\0');
        for (;;) {
          const auto got = stream.read_some(writable(piece));
          EXPECT_TRUE(got) << got.error().message();
          if (!got || *got == 0) return;
          EXPECT_TRUE(stream.write_all(bytes(piece).first(*got)));
        }
      }).value();
    }
  });
  std::vector<JoinHandle<int>> clients;
  for (int i = 0; i < 4; ++i)
    clients.push_back(spawn([&] {
      int rounds = 0;
      while (!over) {
        auto client = net::TcpStream::connect(listening.address);
        EXPECT_TRUE(client) << client.error().message();
        if (!client) return rounds;
        for (int k = 0; k < 20; ++k, ++rounds) {
          EXPECT_TRUE(client->write_all(bytes("ping")));
          std::string got(4, '\0');
          EXPECT_EQ(client->read_full(writable(got)).value(), 4u);
        }
        EXPECT_TRUE(this_fiber::sleep_for(100us));
      }
      return rounds;
    }));
  ForeignThreads threads;
  long sent[2] = {};
  threads.start([&] {
    for (RaceBudget budget; !budget.spent(); std::this_thread::sleep_for(500us)) {
      const int which = static_cast<int>(sent[0] + sent[1]) % 2;
      if (::pthread_kill(target, which == 0 ? SIGUSR1 : SIGUSR2) == 0) ++sent[which];
    }
    over = true;
  });
  for (auto& client : clients)
    EXPECT_GT(client.join().value(), 0);
  threads.join();
  listening.listener.close();
  EXPECT_EQ(server.join().value(), Errc::closed);
  // Signals of one kind may merge while they are pending; no kind is lost.
  for (const int which : {0, 1}) {
    EXPECT_GT(handled[which], 0);
    EXPECT_LE(handled[which], sent[which]);
  }
}

}  // namespace
}  // namespace runloom::test
