#include "file_watch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/files.hpp"

namespace runloom::dns {
namespace {

using namespace test;

TEST(DnsFileWatch, ChangesOfEveryKindAreSeen) {
  const TempDirectory directory;
  const std::string file = directory / "file", other = directory / "other";
  make_file(file, "one");
  FileWatch watch;
  ASSERT_TRUE(watch.watch({file}));
  EXPECT_FALSE(watch.changed());
  make_file(file, "two");
  EXPECT_TRUE(watch.changed());
  EXPECT_FALSE(watch.changed());
  make_file(other, "x");
  EXPECT_FALSE(watch.changed()) << "another file's";
  std::filesystem::rename(other, file);
  EXPECT_TRUE(watch.changed());
  ASSERT_TRUE(watch.watch({file}));
  std::filesystem::remove(file);
  EXPECT_TRUE(watch.changed());
  ASSERT_TRUE(watch.watch({file}));
  make_file(file, "again");
  EXPECT_TRUE(watch.changed()) << "one that was not there";
}

TEST(DnsFileWatch, LinksAreFollowed) {
  const TempDirectory here, there;
  make_file(there / "target", "one");
  ASSERT_EQ(::symlink((there / "target").c_str(), (here / "link").c_str()), 0);
  FileWatch watch;
  ASSERT_TRUE(watch.watch({here / "link"}));
  make_file(there / "target.new", "two");
  std::filesystem::rename(there / "target.new", there / "target");
  EXPECT_TRUE(watch.changed());
  ASSERT_TRUE(watch.watch({here / "link"}));
  ASSERT_EQ(::symlink("elsewhere", (here / "link.new").c_str()), 0);
  std::filesystem::rename(here / "link.new", here / "link");
  EXPECT_TRUE(watch.changed());
}

TEST(DnsFileWatch, ADirectoryThatIsNotThereYet) {
  const TempDirectory directory;
  FileWatch watch;
  ASSERT_TRUE(watch.watch({directory / "later/file"}));
  EXPECT_FALSE(watch.changed());
  std::filesystem::create_directory(directory / "later");
  EXPECT_TRUE(watch.changed());
}

}  // namespace
}  // namespace runloom::dns
