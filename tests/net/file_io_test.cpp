// Reads and writes: as the plain kernel's, whatever the page cache has.
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <atomic>
#include <set>

#include "runloom/net/buffered.hpp"
#include "runloom/net/file.hpp"
#include "support/files.hpp"
#include "support/net_test.hpp"
#include "support/on_pool.hpp"
#include "support/race.hpp"
#include "support/syscall_faults.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::File;

Result<std::string> read_part(const File& file, std::size_t most, off_t offset) {
  std::string text(most, '\1');
  RUNLOOM_TRY(const std::size_t count, file.read_at(writable(text), offset));
  // Never stale bytes past the count.
  EXPECT_EQ(text.find_first_not_of('\1', count), std::string::npos);
  text.resize(count);
  return text;
}

// ---------------------------------------------------------------- F12

NET_TEST(FileIo, F12ReadsAcrossTheEnd) {
  const TempDirectory directory;
  make_file(directory / "a", pattern(10'000));
  const auto file = File::open(directory / "a").value();
  for (const bool cold : {false, true}) {
    if (cold) drop_cache(directory / "a");
    EXPECT_EQ(read_part(file, 20'000, 0).value(), pattern(10'000));
    EXPECT_EQ(read_part(file, 100, 9'990).value(), pattern(10, 9'990));
    EXPECT_EQ(read_part(file, 100, 10'000).value(), "");
    EXPECT_EQ(read_part(file, 100, 99'999).value(), "");
    EXPECT_EQ(read_part(file, 0, 0).value(), "");
  }
  std::string text(20, '\0');
  std::size_t count = 99;
  EXPECT_EQ(file.read_exact_at(writable(text), 9'990, {}, &count).error(),
            make_error_code(net::ReadErrc::end_of_stream));
  EXPECT_EQ(count, 10u);
  EXPECT_TRUE(file.read_exact_at(writable(text), 9'980, {}, &count));
  EXPECT_EQ(count, 20u);
}

// Cached and missing pages in turn: one read gets them all.
NET_TEST(FileIo, F12ReadsWhatIsCachedInPart) {
  constexpr std::size_t kSize = 3'000'000;
  const TempDirectory directory;
  make_file(directory / "a", pattern(kSize));
  const auto file = File::open(directory / "a").value();
  EXPECT_EQ(::posix_fadvise(file.number(), 0, 0, POSIX_FADV_RANDOM), 0);  // no readahead
  drop_cache(directory / "a");
  for (std::size_t at = 0; at < kSize; at += 300'000)
    EXPECT_EQ(read_part(file, 5'000, static_cast<off_t>(at)).value(), pattern(5'000, at));
  EXPECT_EQ(read_part(file, kSize + 1, 0).value(), pattern(kSize));
}

NET_TEST(FileIo, F12ReadsThreeGigabytesInOneCall) {
  constexpr std::size_t kSize = std::size_t{3} << 30;
  // Where a hole that is read takes no memory.
  const bool in_memory = std::filesystem::exists("/dev/shm") && file_in_memory("/dev/shm");
  if (!in_memory) GTEST_SKIP() << "no tmpfs at /dev/shm";
  const TempDirectory directory("/dev/shm");
  const auto file = File::open(directory / "sparse", O_RDWR | O_CREAT).value();
  ASSERT_TRUE(file.truncate(kSize + 100));
  ASSERT_TRUE(file.write_all_at(bytes("end"), kSize - 3));
  // All of it into the same megabytes.
  constexpr std::size_t kBuffer = 16 << 20;
  std::string text(kBuffer, '\1');
  std::vector<iovec> parts(kSize / kBuffer, iovec{text.data(), kBuffer});
  EXPECT_EQ(file.readv_at(parts, 0).value(), kSize);
  EXPECT_EQ(text.substr(kBuffer - 4), std::string("\0end", 4));
  EXPECT_EQ(file.status().value().size, kSize + 100);
}

NET_TEST(FileIo, F12ReadsAFileThatGrows) {
  const TempDirectory directory;
  const auto writer = File::open(directory / "log", O_WRONLY | O_CREAT | O_APPEND).value();
  const auto reader = File::open(directory / "log").value();
  std::string seen;
  std::string text(64 * 1024, '\0');
  for (std::size_t round = 0; round < 50; ++round) {
    ASSERT_TRUE(writer.write_all(bytes(pattern(1'000, round * 1'000))));
    for (;;) {
      const std::size_t count = reader.read(writable(text)).value();
      if (count == 0) break;
      seen.append(text, 0, count);
    }
    EXPECT_EQ(seen.size(), (round + 1) * 1'000);
  }
  EXPECT_EQ(seen, pattern(50'000));
}

NET_TEST(FileIo, F12ReadsFilesWithoutASize) {
  const auto maps = File::open("/proc/self/maps").value();
  EXPECT_EQ(maps.status().value().size, 0u);
  const std::string text = maps.read_all().value();
  EXPECT_NE(text.find("[stack]"), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
  const auto zero = File::open("/dev/zero").value();
  EXPECT_EQ(read_part(zero, 100, 0).value(), std::string(100, '\0'));
  EXPECT_EQ(zero.read_all(1'000'000).error(), make_error_code(net::ReadErrc::limit_exceeded));
}

NET_TEST(FileIo, ReadsAll) {
  const TempDirectory directory;
  for (const std::size_t size : {0, 1, 16 * 1024, 100'000}) {
    make_file(directory / "a", pattern(size));
    const auto file = File::open(directory / "a").value();
    EXPECT_EQ(file.read_all(size).value(), pattern(size));
    EXPECT_EQ(file.read_all().value(), "");
    ASSERT_TRUE(file.seek(0));
    if (size != 0) {
      EXPECT_EQ(file.read_all(size - 1).error(), make_error_code(net::ReadErrc::limit_exceeded));
    }
  }
}

NET_TEST(FileIo, F12RetriesAfterEintr) {
  const OnPool on_pool;
  const TempDirectory directory;
  make_file(directory / "a", "text");
  auto file = File::open(directory / "a", O_RDWR).value();
  for (const bool away : {false, true}) {
    const Fault read_fault(Call::preadv2, away ? EOPNOTSUPP : EINTR);
    const Fault write_fault(Call::pwritev2, EINTR);
    EXPECT_EQ(read_part(file, 10, 0).value(), "text");
    EXPECT_EQ(file.write_at(bytes("next"), 0).value(), 4u);
    EXPECT_EQ(read_part(file, 10, 0).value(), "next");
    const Fault read_again(Call::preadv2, EINTR, 1, 3);
    EXPECT_EQ(file.write_at(bytes("text"), 0).value(), 4u);
    EXPECT_EQ(read_part(file, 10, 0).value(), "text");
    EXPECT_EQ(read_again.failed(), 3);
    const Fault sync_fault(Call::fsync, EINTR, 1, 3);
    EXPECT_TRUE(file.sync());
    EXPECT_EQ(sync_fault.failed(), 3);
  }
}

// ---------------------------------------------------------------- buffers and positions

NET_TEST(FileIo, ScattersAndGathers) {
  const TempDirectory directory;
  auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
  std::string text = pattern(2'000'000);
  std::vector<iovec> parts;
  Random random(1);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = std::min<std::size_t>(random.below(100'000), text.size() - at);
    parts.push_back({text.data() + at, size});  // some of them empty
    at += size;
  }
  for (const bool cold : {false, true}) {
    ASSERT_EQ(file.writev_at(parts, 10).value(), text.size());
    if (cold) drop_cache(directory / "a");
    std::fill(text.begin(), text.end(), '\0');
    EXPECT_EQ(file.readv_at(parts, 10).value(), text.size());
    EXPECT_EQ(text, pattern(2'000'000));
  }
  ASSERT_TRUE(file.truncate(0));
  EXPECT_EQ(file.writev(parts).value(), text.size());
  EXPECT_EQ(file.position().value(), 2'000'000);
  ASSERT_TRUE(file.seek(0));
  std::fill(text.begin(), text.end(), '\0');
  EXPECT_EQ(file.readv(parts).value(), text.size());
  EXPECT_EQ(text, pattern(2'000'000));
}

// Many readers at the position: each record goes to one of them, whole.
NET_TEST(FileIo, TheyTakeTurnsAtThePosition) {
  constexpr std::size_t kRecord = 5'000;
  constexpr std::size_t kRecords = 400;
  const TempDirectory directory;
  std::string all;
  for (std::size_t i = 0; i < kRecords; ++i)
    all += std::string(kRecord, static_cast<char>('a' + i % 26));
  make_file(directory / "a", all);
  drop_cache(directory / "a");
  const auto file = File::open(directory / "a").value();
  std::vector<JoinHandle<std::size_t>> readers;
  for (int i = 0; i < 20; ++i)
    readers.push_back(spawn([&]() -> std::size_t {
      std::string text(kRecord, '\0');
      for (std::size_t records = 0;; ++records) {
        if (file.read(writable(text)).value() == 0) return records;
        EXPECT_EQ(text, std::string(kRecord, text[0]));
      }
    }));
  std::size_t records = 0;
  for (auto& reader : readers)
    records += reader.join().value();
  EXPECT_EQ(records, kRecords);
}

NET_TEST(FileIo, AppendsOfManyFibersStayWhole) {
  const TempDirectory directory;
  const auto file = File::open(directory / "log", O_WRONLY | O_CREAT | O_APPEND).value();
  std::vector<JoinHandle<void>> writers;
  for (int i = 0; i < 20; ++i)
    writers.push_back(spawn([&, i] {
      const std::string line = std::string(100, static_cast<char>('a' + i)) + "\n";
      for (int n = 0; n < 20; ++n)
        EXPECT_EQ(file.write(bytes(line)).value(), line.size());
    }));
  for (auto& writer : writers)
    EXPECT_TRUE(writer.join());
  const std::string text = file_text(directory / "log");
  ASSERT_EQ(text.size(), 20u * 20u * 101u);
  for (std::size_t at = 0; at < text.size(); at += 101)
    EXPECT_EQ(text.substr(at, 101), std::string(100, text[at]) + "\n");
}

// The same random operations on a File and by plain system calls: equal results, equal files.
NET_TEST(FileIo, DoesWhatTheKernelDoes) {
  const TempDirectory directory;
  auto file = File::open(directory / "ours", O_RDWR | O_CREAT).value();
  const int plain = ::open((directory / "plain").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(plain, 0);
  Random random(2);
  std::string ours(70'000, '\0');
  std::string theirs(70'000, '\0');
  const auto same = [&](const Result<std::size_t>& mine, ssize_t other) {
    const int err = errno;
    if (other < 0)
      EXPECT_EQ(mine.error(), errno_code(err));
    else
      EXPECT_EQ(mine.value(), static_cast<std::size_t>(other));
  };
  for (int round = 0; round < 400 && !::testing::Test::HasFailure(); ++round) {
    const std::size_t size = random.below(70'000);
    const auto offset =
        static_cast<off_t>(random.below(200'000)) - (random.one_in(20) ? 200'000 : 0);
    switch (random.below(8)) {
      case 0:
      case 1:
        same(file.read_at(writable(ours).first(size), offset),
             ::pread(plain, theirs.data(), size, offset));
        break;
      case 2:
        same(file.read(writable(ours).first(size)), ::read(plain, theirs.data(), size));
        break;
      case 3: {
        const std::string data = pattern(size, random.below(1000));
        same(file.write_at(bytes(data), offset), ::pwrite(plain, data.data(), size, offset));
        break;
      }
      case 4: {
        const std::string data = pattern(size, random.below(1000));
        same(file.write(bytes(data)), ::write(plain, data.data(), size));
        break;
      }
      case 5: {
        const auto mine = file.seek(offset, SEEK_SET);
        const off_t other = ::lseek(plain, offset, SEEK_SET);
        if (other < 0)
          EXPECT_EQ(mine.error(), last_errno());
        else
          EXPECT_EQ(mine.value(), other);
        break;
      }
      case 6: {
        const auto cut = random.below(200'000);
        EXPECT_TRUE(file.truncate(cut));
        EXPECT_EQ(::ftruncate(plain, cut), 0);
        break;
      }
      default:
        drop_cache(directory / "ours");
    }
    EXPECT_EQ(ours, theirs) << round;
  }
  ::close(plain);
  EXPECT_EQ(file_text(directory / "ours"), file_text(directory / "plain"));
}

NET_TEST(FileIo, DirectFiles) {
  const TempDirectory directory;
  make_file(directory / "a", pattern(1'000'000));
  const auto file = File::open(directory / "a", O_RDWR | O_DIRECT);
  if (!file) GTEST_SKIP() << "O_DIRECT: " << file.error().message();
  alignas(4096) static char buffer[1 << 20];
  const auto memory = std::as_writable_bytes(std::span(buffer));
  EXPECT_EQ(file->read_at(memory, 0).value(), 1'000'000u);
  EXPECT_EQ(std::string(buffer, 1'000'000), pattern(1'000'000));
  EXPECT_EQ(file->read_at(memory.first(100), 0).error(), errno_code(EINVAL));
}

// ---------------------------------------------------------------- full devices

NET_TEST(FileIo, F14WritesToAFullFileSystem) {
  constexpr std::size_t kRoom = 1 << 20;
  const TempDirectory directory;
  if (::mount("none", directory.path().c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "no tmpfs of 1 MiB: " << last_errno().message();
  {
    auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
    const std::string data = pattern(3 * kRoom);
    // What fits counts; the error comes with the next one, as the kernel does it.
    const std::size_t fitted = file.write(bytes(data)).value();
    EXPECT_GT(fitted, 0u);
    EXPECT_LE(fitted, kRoom);
    EXPECT_EQ(file.write(bytes(data)).error(), errno_code(ENOSPC));
    std::size_t written = 99;
    EXPECT_EQ(file.write_all(bytes(data), {}, &written).error(), errno_code(ENOSPC));
    EXPECT_EQ(written, 0u);
    EXPECT_EQ(file.write_at(bytes("x"), static_cast<off_t>(2 * kRoom)).error(), errno_code(ENOSPC));
    // The engine goes on.
    EXPECT_TRUE(file.sync());
    EXPECT_EQ(read_part(file, 2 * kRoom, 0).value(), data.substr(0, fitted));
    ASSERT_TRUE(file.truncate(0));
    ASSERT_TRUE(file.seek(0));
    EXPECT_TRUE(file.write_all(bytes("room"), {}, &written));
    EXPECT_EQ(written, 4u);
    EXPECT_TRUE(file.close());
  }
  EXPECT_EQ(::umount(directory.path().c_str()), 0);
}

NET_TEST(FileIo, F14ReportsAPartAndThenTheError) {
  const OnPool on_pool;
  const TempDirectory directory;
  auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
  if (file_in_memory(directory.path())) GTEST_SKIP() << "writes there never leave the thread";
  const std::string data = pattern(3 << 20);  // three pieces
  std::size_t written = 0;
  {
    const Fault not_here(Call::pwritev2, EOPNOTSUPP);
    EXPECT_EQ(file.write_at(bytes("x"), 0).value(), 1u);
  }
  const Fault fault(Call::pwritev2, ENOSPC, 2, 100);
  EXPECT_EQ(file.write_at(bytes(data), 0).value(), std::size_t{1} << 20);
  EXPECT_EQ(file.write_all_at(bytes(data), 0, {}, &written).error(), errno_code(ENOSPC));
  EXPECT_EQ(written, 0u);
}

NET_TEST(FileIo, F14TheLimitOfFileSizesIsAnError) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const TempDirectory directory;
  auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
  const auto old = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 10'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto first = file.write(bytes(pattern(20'000)));
  const auto second = file.write(bytes(pattern(20'000)));
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, old);
  EXPECT_EQ(first.value(), 10'000u);
  EXPECT_EQ(second.error(), errno_code(EFBIG));
}

// ---------------------------------------------------------------- F16

std::atomic<int> alarms = 0;  // counted on whichever thread the signal meets

NET_TEST(FileIo, F16SignalsInterruptNothing) {
  const TempDirectory directory;
  make_file(directory / "a", pattern(1 << 20));
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++alarms; };  // no SA_RESTART
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGUSR1;
  timer_t timer;
  ASSERT_EQ(::timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
  const itimerspec each_millisecond{{0, 1'000'000}, {0, 1'000'000}};
  ASSERT_EQ(::timer_settime(timer, 0, &each_millisecond, nullptr), 0);
  alarms = 0;
  std::vector<JoinHandle<void>> fibers;
  for (unsigned i = 0; i < 8; ++i)
    fibers.push_back(spawn([&, i] {
      Random random(i);
      const auto file = File::open(directory / "a").value();
      const auto own = File::open(directory / std::to_string(i), O_RDWR | O_CREAT).value();
      for (int round = 0; round < 50 || alarms < 20; ++round) {
        const std::size_t at = random.below(1'000'000);
        EXPECT_EQ(read_part(file, 5'000, static_cast<off_t>(at)).value(), pattern(5'000, at));
        EXPECT_EQ(own.write(bytes("line")).value(), 4u);
        if (random.one_in(20)) drop_cache(directory / "a");
      }
      const auto size = own.status().value().size;
      EXPECT_EQ(own.position().value(), static_cast<off_t>(size));
      EXPECT_TRUE(own.sync());
      ASSERT_TRUE(own.seek(0));
      std::string lines;
      for (std::size_t n = 0; n < size / 4; ++n)
        lines += "line";
      EXPECT_EQ(own.read_all().value(), lines);
    }));
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
  ::timer_delete(timer);
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_GE(alarms, 20);
}

}  // namespace
}  // namespace runloom::test
