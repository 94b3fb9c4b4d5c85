#include <sys/socket.h>

#include <thread>

#include "runloom/net/file.hpp"
#include "support/files.hpp"
#include "support/net_test.hpp"
#include "support/syscall_faults.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::File;

// ---------------------------------------------------------------- to a socket

NET_TEST(FileSend, SendsHotAndColdFiles) {
  constexpr std::size_t kSize = 3'000'000;
  const TempDirectory directory;
  make_file(directory / "a", pattern(kSize));
  const auto file = File::open(directory / "a").value();
  for (const bool cold : {false, true}) {
    if (cold) drop_cache(directory / "a");
    TcpPair pair;
    auto reader = spawn([&] { return read_to_end(pair.server); });
    std::size_t sent = 99;
    EXPECT_EQ(net::send_file(pair.client.fd(), file, 7, 2 * kSize, {}, &sent).value(), kSize - 7);
    EXPECT_EQ(sent, kSize - 7);
    pair.client.close();
    EXPECT_EQ(reader.join().value(), pattern(kSize - 7, 7));
  }
}

// What the page cache has not is read by a thread of the pool: the hub's other fibers run.
NET_TEST(FileSend, AColdFileDoesNotStopTheHub) {
  const TempDirectory directory;
  if (file_in_memory(directory.path())) GTEST_SKIP() << "nothing is cold there";
  make_file(directory / "a", pattern(100'000));
  const auto file = File::open(directory / "a").value();
  drop_cache(directory / "a");
  TcpPair pair;
  Hold hold(Call::sendfile);  // of other threads than the hubs'
  auto sender = spawn([&] { return net::send_file(pair.client.fd(), file, 0, 100'000); },
                      {.hub = Hub::current()->index()});
  yield_until([&] { return hold.held() == 1; });
  hold.release();
  EXPECT_EQ(sender.join().value(), 100'000u);
  pair.client.close();
  EXPECT_EQ(read_to_end(pair.server).value(), pattern(100'000));
}

NET_TEST(FileSend, ADeadlineTellsHowFarItGot) {
  const TempDirectory directory;
  make_file(directory / "a", std::string(20 << 20, 'x'));
  const auto file = File::open(directory / "a").value();
  TcpPair pair;
  std::size_t sent = 0;
  EXPECT_EQ(
      net::send_file(pair.client.fd(), file, 0, 20 << 20, Deadline::after(50ms), &sent).error(),
      Errc::timed_out);
  EXPECT_GT(sent, 0u);
  pair.client.close();
  EXPECT_EQ(read_to_end(pair.server).value().size(), sent);
  EXPECT_EQ(net::send_file(pair.client.fd(), file, 0, 1).error(), Errc::closed);
  EXPECT_EQ(net::send_file(pair.server.fd(), File(), 0, 1).error(), Errc::closed);
}

// ---------------------------------------------------------------- from a socket

NET_TEST(FileSend, ReceivesIntoAFile) {
  constexpr std::size_t kSize = 3'000'000;
  const TempDirectory directory;
  const auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
  TcpPair pair;
  auto writer = spawn([&] {
    EXPECT_TRUE(pair.client.write_all(bytes(pattern(kSize))));
    EXPECT_TRUE(pair.client.shutdown_write());
  });
  std::uint64_t moved = 99;
  EXPECT_EQ(net::receive_file(pair.server.fd(), file, 10, 1'000, {}, &moved).value(), 1'000u);
  EXPECT_EQ(moved, 1'000u);
  EXPECT_EQ(net::receive_file(pair.server.fd(), file, 1'010, ~std::uint64_t{0}).value(),
            kSize - 1'000);
  EXPECT_TRUE(writer.join());
  EXPECT_EQ(net::receive_file(pair.server.fd(), file, 0, 10).value(), 0u);
  EXPECT_EQ(file_text(directory / "a"), std::string(10, '\0') + pattern(kSize));
}

NET_TEST(FileSend, AReceiveThatIsCancelledTellsHowFarItGot) {
  const TempDirectory directory;
  const auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
  TcpPair pair;
  ASSERT_TRUE(pair.client.write_all(bytes("some")));
  std::uint64_t moved = 0;
  EXPECT_EQ(
      net::receive_file(pair.server.fd(), file, 0, 100, Deadline::after(20ms), &moved).error(),
      Errc::timed_out);
  EXPECT_EQ(moved, 4u);
  EXPECT_EQ(file_text(directory / "a"), "some");
  const auto reader = File::open(directory / "a").value();
  ASSERT_TRUE(pair.client.write_all(bytes("more")));
  EXPECT_EQ(net::receive_file(pair.server.fd(), reader, 0, 100).error(), errno_code(EBADF));
  EXPECT_EQ(net::receive_file(pair.server.fd(), file, -1, 100).error(), errno_code(EINVAL));
  const Fault fault(Call::pipe2, EMFILE);
  EXPECT_EQ(net::receive_file(pair.server.fd(), file, 0, 100).error(), errno_code(EMFILE));
}

// ---------------------------------------------------------------- between files

NET_TEST(FileSend, CopiesRanges) {
  constexpr std::size_t kSize = 3'000'000;
  const TempDirectory directory;
  make_file(directory / "a", pattern(kSize));
  const auto from = File::open(directory / "a").value();
  for (const int err : {0, EXDEV, EOPNOTSUPP, EINVAL, ENOSYS}) {
    const auto to = File::open(directory / "b", O_RDWR | O_CREAT | O_TRUNC).value();
    std::optional<Fault> fault;
    if (err != 0) fault.emplace(Call::copy_file_range, err);
    std::uint64_t moved = 99;
    EXPECT_EQ(net::copy_range(from, 5, to, 10, 2 * kSize, {}, &moved).value(), kSize - 5) << err;
    EXPECT_EQ(moved, kSize - 5);
    EXPECT_EQ(file_text(directory / "b"), std::string(10, '\0') + pattern(kSize - 5, 5)) << err;
  }
  const auto to = File::open(directory / "b", O_RDWR).value();
  const Fault fault(Call::copy_file_range, ENOSPC, 2);
  std::uint64_t moved = 99;
  EXPECT_EQ(net::copy_range(from, 0, to, 0, kSize, {}, &moved).error(), errno_code(ENOSPC));
  EXPECT_EQ(moved, std::uint64_t{1} << 20);
}

NET_TEST(FileSend, CopiesFilesWithoutASize) {
  const TempDirectory directory;
  const auto from = File::open("/proc/self/status").value();
  const auto to = File::open(directory / "b", O_RDWR | O_CREAT).value();
  EXPECT_GT(net::copy_range(from, 0, to, 0, 1 << 20).value(), 100u);
  EXPECT_TRUE(file_text(directory / "b").starts_with("Name:"));
}

}  // namespace
}  // namespace runloom::test
