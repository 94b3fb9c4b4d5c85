#include "runloom/net/directory.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <set>

#include "support/files.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using net::Directory;
using net::File;
using net::FileType;

std::vector<std::string> names(const std::vector<net::DirectoryEntry>& entries) {
  std::vector<std::string> all;
  for (const auto& entry : entries)
    all.push_back(entry.name);
  return all;
}

NET_TEST(Directory, ListsEachKind) {
  const TempDirectory directory;
  EXPECT_TRUE(net::list_directory(directory.path()).value().empty());
  make_file(directory / "file", "x");
  ASSERT_EQ(::mkdir((directory / "directory").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("nowhere", (directory / "link").c_str()), 0);
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (directory / "socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(fd);

  const auto entries = net::list_directory(directory.path()).value();
  EXPECT_EQ(names(entries),
            (std::vector<std::string>{"directory", "fifo", "file", "link", "socket"}));
  const FileType types[] = {FileType::directory, FileType::fifo, FileType::regular, FileType::link,
                            FileType::socket};
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto status = net::file_status(directory / entries[i].name, false).value();
    EXPECT_EQ(entries[i].type, types[i]);
    EXPECT_EQ(entries[i].type, status.type);
    EXPECT_EQ(entries[i].inode, status.inode);
  }
}

NET_TEST(Directory, ListsManyInBatches) {
  constexpr int kFiles = 3'000;
  const TempDirectory directory;
  std::set<std::string> expected;
  for (int i = 0; i < kFiles; ++i) {
    const std::string name =
        std::to_string(i) + std::string(static_cast<std::size_t>(i % 200), 'x');
    make_file(directory / name, "");
    expected.insert(name);
  }
  const auto entries = net::list_directory(directory.path()).value();
  EXPECT_EQ(names(entries), std::vector<std::string>(expected.begin(), expected.end()));
}

NET_TEST(Directory, OpensWhatItLists) {
  const TempDirectory directory;
  ASSERT_EQ(::mkdir((directory / "sub").c_str(), 0700), 0);
  make_file(directory / "sub/file", "text");
  auto above = Directory::open(directory.path()).value();
  const auto entry = above.next().value();
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->name, "sub");
  EXPECT_EQ(above.next().value(), std::nullopt);
  EXPECT_EQ(above.next().value(), std::nullopt);
  auto sub = Directory::open_at(above.file(), entry->name).value();
  const auto below = sub.next().value();
  ASSERT_TRUE(below);
  EXPECT_EQ(File::open_at(sub.file(), below->name).value().read_all().value(), "text");
  Directory moved = std::move(sub);
  EXPECT_EQ(moved.next().value(), std::nullopt);
}

NET_TEST(Directory, FailsAsTheSystemCallDoes) {
  const TempDirectory directory;
  make_file(directory / "file", "x");
  ASSERT_EQ(::symlink(".", (directory / "link").c_str()), 0);
  EXPECT_EQ(Directory::open(directory / "none").error(), errno_code(ENOENT));
  EXPECT_EQ(net::list_directory(directory / "file").error(), errno_code(ENOTDIR));
  const auto base = File::open(directory.path(), O_PATH).value();
  EXPECT_EQ(Directory::open_at(base, "link").error(), errno_code(ENOTDIR));
}

}  // namespace
}  // namespace runloom::test
