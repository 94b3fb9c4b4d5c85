// Files for tests: a directory that goes with its content, and the plain kernel's way to read and
// write.
#pragma once

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "support/fiber_test.hpp"

namespace runloom::test {

class TempDirectory {
 public:
  TempDirectory() : TempDirectory(std::filesystem::temp_directory_path()) {}
  explicit TempDirectory(const std::filesystem::path& above) {
    std::string name = (above / "runloom-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + '/' + std::string(name); }

 private:
  std::string path_;
};

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void make_file(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  ASSERT_TRUE(out.flush());
}

// Whether what is there is memory (tmpfs), and so never waits for a device.
inline bool file_in_memory(const std::string& path) {
  struct statfs status;
  EXPECT_EQ(::statfs(path.c_str(), &status), 0);
  return status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC;
}

// Writes the file to its device and takes it out of memory. A file system that is memory keeps it.
inline void drop_cache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::syscall(SYS_fdatasync, fd), 0);  // not the one that a Fault may fail
  EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(fd);
}

}  // namespace runloom::test
