#include "file_cache.hpp"

#include <sys/syscall.h>

#include "support/files.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

constexpr std::size_t kSize = 1'000'000;

bool kernel_counts_pages(int fd) {
  const std::uint64_t range[2] = {0, 4096};
  std::uint64_t count[5];
  return ::syscall(451, fd, range, count, 0) == 0;
}

TEST(FileCache, KnowsWhatIsInMemory) {
  const TempDirectory directory;
  const std::string path = directory / "a";
  make_file(path, pattern(kSize));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);
  if (!kernel_counts_pages(fd)) {
    EXPECT_FALSE(net::is_cached(fd, 0, 1));  // never a wrong yes
    ::close(fd);
    GTEST_SKIP() << "the kernel has no cachestat";
  }
  EXPECT_TRUE(net::is_cached(fd, 0, kSize));
  EXPECT_TRUE(net::is_cached(fd, 0, 10 * kSize));  // what there is of it
  EXPECT_TRUE(net::is_cached(fd, 10 * kSize, 1));
  if (!file_in_memory(directory.path())) {
    drop_cache(path);
    EXPECT_FALSE(net::is_cached(fd, 0, kSize));
    EXPECT_FALSE(net::is_cached(fd, kSize - 1, 1));
    char byte;
    ASSERT_EQ(::pread(fd, &byte, 1, 10'000), 1);
    EXPECT_TRUE(net::is_cached(fd, 10'000, 1));
    EXPECT_TRUE(net::is_cached(fd, 9'000, 2'000));
    EXPECT_FALSE(net::is_cached(fd, 10'000, 100'000));
  }
  ::close(fd);
}

}  // namespace
}  // namespace runloom::test
