#include <sys/stat.h>

#include <set>

#include "runloom/net/file.hpp"
#include "support/files.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using net::bytes;
using net::FileType;

NET_TEST(FilePaths, RenamesAndRemoves) {
  const TempDirectory directory;
  make_file(directory / "a", "new");
  make_file(directory / "b", "old");
  EXPECT_TRUE(net::rename_file(directory / "a", directory / "b"));
  EXPECT_EQ(file_text(directory / "b"), "new");
  EXPECT_EQ(net::rename_file(directory / "a", directory / "c").error(), errno_code(ENOENT));
  EXPECT_TRUE(net::remove_file(directory / "b"));
  EXPECT_EQ(net::remove_file(directory / "b").error(), errno_code(ENOENT));
  EXPECT_EQ(net::remove_file(directory.path()).error(), errno_code(EISDIR));
}

NET_TEST(FilePaths, MakesAndRemovesDirectories) {
  const TempDirectory directory;
  EXPECT_TRUE(net::make_directory(directory / "sub", 0700));
  EXPECT_EQ(net::make_directory(directory / "sub").error(), errno_code(EEXIST));
  EXPECT_EQ(net::file_status(directory / "sub").value().type, FileType::directory);
  EXPECT_EQ(net::file_status(directory / "sub").value().mode, 0700u);
  EXPECT_TRUE(net::make_directory(directory / "sub/sub"));
  EXPECT_EQ(net::remove_directory(directory / "sub").error(), errno_code(ENOTEMPTY));
  EXPECT_TRUE(net::remove_directory(directory / "sub/sub"));
  EXPECT_TRUE(net::remove_directory(directory / "sub"));
  EXPECT_EQ(net::remove_directory(directory / "sub").error(), errno_code(ENOENT));
}

NET_TEST(FilePaths, TellsOfLinksAndTheirTargets) {
  const TempDirectory directory;
  make_file(directory / "file", "12345");
  ASSERT_EQ(::symlink("file", (directory / "link").c_str()), 0);
  EXPECT_EQ(net::file_status(directory / "link").value().type, FileType::regular);
  EXPECT_EQ(net::file_status(directory / "link").value().size, 5u);
  EXPECT_EQ(net::file_status(directory / "link", false).value().type, FileType::link);
  EXPECT_EQ(net::file_status("/dev/null").value().type, FileType::character_device);
  EXPECT_EQ(net::file_status(directory / "none").error(), errno_code(ENOENT));
}

NET_TEST(FilePaths, RefusesAZeroByte) {
  const std::string path("/tmp/a\0b", 8);
  EXPECT_EQ(net::file_status(path).error(), errno_code(EINVAL));
  EXPECT_EQ(net::rename_file(path, "/tmp/c").error(), errno_code(EINVAL));
  EXPECT_EQ(net::rename_file("/tmp/c", path).error(), errno_code(EINVAL));
  EXPECT_EQ(net::remove_file(path).error(), errno_code(EINVAL));
  EXPECT_EQ(net::make_directory(path).error(), errno_code(EINVAL));
}

NET_TEST(FilePaths, TempFilesAreOnesOwn) {
  const TempDirectory directory;
  std::set<std::string> paths;
  for (int i = 0; i < 20; ++i) {
    auto temp = net::make_temp_file(directory.path(), "x-").value();
    EXPECT_TRUE(temp.path.starts_with(directory / "x-"));
    EXPECT_TRUE(paths.insert(temp.path).second);
    EXPECT_EQ(temp.file.status().value().mode, 0600u);
    EXPECT_EQ(temp.file.write(bytes("text")).value(), 4u);
    EXPECT_EQ(file_text(temp.path), "text");
  }
  EXPECT_EQ(net::make_temp_file(directory / "none").error(), errno_code(ENOENT));
}

}  // namespace
}  // namespace runloom::test
