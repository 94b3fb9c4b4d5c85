// The k-th call of each system call fails, with each errno that it may fail with: an error or
// success comes out, never a hang, a leak or wrong bytes.
#include <string>
#include <vector>

#include "runloom/net/directory.hpp"
#include "runloom/net/file.hpp"
#include "support/files.hpp"
#include "support/net_test.hpp"
#include "support/on_pool.hpp"
#include "support/syscall_faults.hpp"

namespace runloom::test {
namespace {

using net::bytes;
using net::File;

constexpr std::size_t kSize = 600'000;

// The first error of a tour through everything, or none. What succeeded must be right.
Result<void> tour(const TempDirectory& directory) {
  const std::string data = pattern(kSize);
  RUNLOOM_TRY(File file, File::open(directory / "a", O_RDWR | O_CREAT | O_TRUNC));
  RUNLOOM_TRY(const std::size_t written, file.write_at(bytes(data), 0));
  if (auto rest = file.write_all_at(bytes(data).subspan(written), static_cast<off_t>(written));
      !rest)
    return rest;
  if (auto synced = file.sync(); !synced) return synced;
  if (auto synced = file.sync_data(); !synced) return synced;
  if (auto room = file.allocate(0, kSize); !room && room.error() != errno_code(EOPNOTSUPP))
    return room;
  drop_cache(directory / "a");
  std::string text(kSize, '\0');
  if (auto whole = file.read_exact_at(writable(text), 0); !whole) return whole;
  EXPECT_EQ(text, data);
  RUNLOOM_TRY(const auto status, file.status());
  EXPECT_EQ(status.size, kSize);
  RUNLOOM_TRY(File copy, File::open(directory / "b", O_RDWR | O_CREAT | O_TRUNC));
  RUNLOOM_TRY(const auto copied, net::copy_range(file, 0, copy, 0, kSize));
  EXPECT_EQ(copied, kSize);
  EXPECT_EQ(file_text(directory / "b"), data);
  if (auto cut = copy.truncate(10); !cut) return cut;
  if (auto closed = copy.close(); !closed) return closed;
  if (auto renamed = net::rename_file(directory / "b", directory / "c"); !renamed) return renamed;
  if (auto made = net::make_directory(directory / "d"); !made) return made;
  RUNLOOM_TRY(const auto entries, net::list_directory(directory.path()));
  EXPECT_EQ(entries.size(), 3u);
  if (auto removed = net::remove_directory(directory / "d"); !removed) return removed;
  if (auto removed = net::remove_file(directory / "c"); !removed) return removed;

  TcpPair pair;
  auto reader = spawn([&] { return read_to_end(pair.server); });
  const auto sent = net::send_file(pair.client.fd(), file, 0, kSize);
  pair.client.close();
  const auto received = reader.join();
  if (!sent) return Unexpected{sent.error()};
  EXPECT_EQ(received.value(), data);
  return file.close();
}

struct Failing {
  const char* name;
  Call call;
  std::vector<int> errors;
};

using Failures = std::vector<Failing>;

const Failures kOpening{
    {"openat", Call::openat, {EACCES, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS, EINTR, EWOULDBLOCK}},
    {"fstat", Call::fstat, {EIO, ENOMEM}},
    {"fcntl", Call::fcntl, {EINVAL, EPERM}},
};
const Failures kTransfers{
    {"preadv2", Call::preadv2, {EIO, EOPNOTSUPP, EAGAIN, EINTR, EINVAL, ENOMEM}},
    {"pwritev2",
     Call::pwritev2,
     {EIO, EOPNOTSUPP, EAGAIN, EINTR, ENOSPC, EDQUOT, EFBIG, EINVAL, ENOMEM}},
};
const Failures kSyncing{
    {"fsync", Call::fsync, {EIO, ENOSPC, EDQUOT, EINTR, EROFS}},
    {"fdatasync", Call::fdatasync, {EIO, ENOSPC, EINTR}},
    {"fallocate", Call::fallocate, {ENOSPC, EINTR, EFBIG, EOPNOTSUPP}},
    {"ftruncate", Call::ftruncate, {EIO, EINTR, EPERM}},
    {"statx", Call::statx, {EIO, ENOMEM, EINTR}},
};
const Failures kPaths{
    {"rename", Call::rename, {EACCES, EXDEV, ENOSPC, EINTR}},
    {"unlinkat", Call::unlinkat, {EACCES, EBUSY, EIO, EINTR}},
    {"mkdir", Call::mkdir, {ENOSPC, EDQUOT, EACCES, EINTR}},
};
const Failures kMoves{
    {"copy_file_range", Call::copy_file_range, {EIO, ENOSPC, EXDEV, EOPNOTSUPP, EINTR, ENOMEM}},
    {"sendfile", Call::sendfile, {EIO, EINTR, ENOMEM, EINVAL, EAGAIN}},
};

// Errors after which another way is taken, or the same one again.
bool may_succeed(int err) {
  return err == EINTR || err == EAGAIN || err == EOPNOTSUPP || err == EXDEV || err == EINVAL;
}

void fail_each(const Failures& failures) {
  const TempDirectory directory;
  const auto clean_up = [&] {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
      std::filesystem::remove_all(entry, ignored);
  };
  for (const Failing& each : failures) {
    for (const int err : each.errors)
      for (const int from : {1, 2, 4}) {
        SCOPED_TRACE(std::string(each.name) + " " + std::to_string(err) + " from call " +
                     std::to_string(from));
        Result<void> done;
        int failed;
        {
          const Fault fault(each.call, err, from);
          done = tour(directory);
          failed = fault.failed();
        }
        if (failed == 0) {
          EXPECT_TRUE(done) << done.error().message();
        } else if (!may_succeed(err) && from == 1 && each.call != Call::fstat) {
          EXPECT_EQ(done.error(), errno_code(err)) << done.error().message();
        }
        clean_up();
        if (::testing::Test::HasFailure()) return;
      }
    // Nothing works for long.
    for (const int err : each.errors) {
      if (err == EINTR || err == EAGAIN) continue;  // those would be retried
      {
        const Fault fault(each.call, err, 1, 1000);
        (void)tour(directory);
      }
      clean_up();
    }
    EXPECT_TRUE(tour(directory));  // and it goes on
    clean_up();
  }
}

void fail_each_on_the_pool(const Failures& failures) {
  const OnPool on_pool;
  fail_each(failures);
}

NET_TEST(FileFaults, Opening) {
  fail_each(kOpening);
}
NET_TEST(FileFaults, Transfers) {
  fail_each(kTransfers);
}
NET_TEST(FileFaults, Syncing) {
  fail_each(kSyncing);
}
NET_TEST(FileFaults, Paths) {
  fail_each(kPaths);
}
NET_TEST(FileFaults, Moves) {
  fail_each(kMoves);
}
NET_TEST(FileFaults, OpeningOnThePool) {
  fail_each_on_the_pool(kOpening);
}
NET_TEST(FileFaults, TransfersOnThePool) {
  fail_each_on_the_pool(kTransfers);
}
NET_TEST(FileFaults, SyncingOnThePool) {
  fail_each_on_the_pool(kSyncing);
}
NET_TEST(FileFaults, PathsOnThePool) {
  fail_each_on_the_pool(kPaths);
}
NET_TEST(FileFaults, MovesOnThePool) {
  fail_each_on_the_pool(kMoves);
}

}  // namespace
}  // namespace runloom::test
