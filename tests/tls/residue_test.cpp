// What is left in the process's memory of data that was decrypted, of passwords and of key files:
// heap, recycled stacks and buffers are searched.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runloom/tls/stream.hpp"
#include "support/files.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

constexpr char kMask = 0x5a;

void wipe(std::string& text) {
  volatile char* at = text.data();
  for (std::size_t i = 0; i < text.size(); ++i)
    at[i] = 0;
}

// A secret that stands in memory only while it is used.
class Needle {
 public:
  // Wipes the text.
  explicit Needle(std::string& text) {
    for (const char c : text)
      masked_.push_back(static_cast<char>(c ^ kMask));
    wipe(text);
  }
  std::string text() const {
    std::string out(masked_.size(), '\0');
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<char>(masked_[i] ^ kMask);
    return out;
  }
  // How often it stands in what the process may write to.
  int found() const {
    const int memory = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    EXPECT_GE(memory, 0);
    int count = 0;
    std::ifstream maps("/proc/self/maps");
    // A mapping of its own, so that it can be left out.
    constexpr std::size_t kPiece = 1 << 20;
    void* const mapped =
        ::mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    char* const piece = static_cast<char*>(mapped);
    const auto own = reinterpret_cast<unsigned long long>(mapped);
    for (std::string line; std::getline(maps, line);) {
      std::istringstream fields(line);
      std::string range;
      std::string rights;
      fields >> range >> rights;
      if (!rights.starts_with("rw")) continue;
      const std::size_t dash = range.find('-');
      const auto begin = std::stoull(range.substr(0, dash), nullptr, 16);
      const auto end = std::stoull(range.substr(dash + 1), nullptr, 16);
      if (begin <= own && own < end) continue;
      for (auto at = begin; at < end; at += kPiece - masked_.size()) {
        // A guard, or memory of a device, can't be read.
        const ssize_t got = ::pread(memory, piece, std::min<unsigned long long>(kPiece, end - at),
                                    static_cast<off_t>(at));
        if (got > 0) count += count_in(piece, static_cast<std::size_t>(got));
      }
    }
    ::munmap(mapped, kPiece);
    ::close(memory);
    return count;
  }

 private:
  int count_in(const char* data, std::size_t size) const {
    int count = 0;
    const char* const end = data + size;
    const auto same = [](char a, char b) { return a == static_cast<char>(b ^ kMask); };
    for (const char* at = data;; ++at) {
      at = std::search(at, end, masked_.begin(), masked_.end(), same);
      if (at == end) return count;
      ++count;
    }
  }
  std::string masked_;
};

std::string random_text(std::size_t size) {
  std::string text(size, '\0');
  std::ifstream("/dev/urandom", std::ios::binary).read(text.data(), static_cast<long>(size));
  return text;
}

TEST(TlsResidue, NothingIsLeftOfWhatWasDecrypted) {
  if (kSanitized) GTEST_SKIP() << "its memory is too large to be searched";
  std::string fresh = random_text(48);
  const Needle needle(fresh);
  {
    std::string shown = needle.text();
    EXPECT_EQ(needle.found(), 1);  // it can be found
    wipe(shown);
  }
  ASSERT_EQ(needle.found(), 0);
  run_fiber_test(fiber_test_options(1), [&] {
    for (const auto version : {tls::Version::tls1_2, tls::Version::tls1_3}) {
      auto options = client_options();
      options.max_version = version;
      TlsPair pair(make_client(options), tls_world().server_context);
      pair.establish();
      // Of several sizes: of one record, of several, gathered.
      for (const std::size_t size : {48, 4000, 60'000}) {
        auto writer = spawn([&] {
          std::string text = needle.text();
          std::string more(size - 48, 'x');
          const iovec buffers[] = {{text.data(), text.size()}, {more.data(), more.size()}};
          EXPECT_TRUE(pair.client.writev_all(buffers));
          wipe(text);
        });
        std::string got(size, '\0');
        EXPECT_EQ(pair.server.read_full(writable(got)).value(), size);
        std::string expected = needle.text();
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), got.begin()));
        wipe(expected);
        wipe(got);
        EXPECT_TRUE(writer.join());
      }
    }
  });
  EXPECT_EQ(needle.found(), 0);
}

TEST(TlsResidue, NothingIsLeftOfAKeyFileOrAPassword) {
  if (kSanitized) GTEST_SKIP() << "its memory is too large to be searched";
  const TempDirectory dir;
  std::string password = "p" + std::to_string(::getpid()) + "-a-long-password-of-this-test";
  const Needle secret(password);
  std::vector<Needle> lines;
  {
    const Issued issued = tls_world().authority.issue({.names = {"DNS:localhost"}, .rsa = true});
    std::string pem = issued.key_pem;
    make_file(dir / "key.pem", pem);
    make_file(dir / "cert.pem", issued.certificate_pem);
    std::string text = secret.text();
    make_file(dir / "encrypted.pem", encrypted_key(pem, text));
    wipe(text);
    // A line from the middle of the key.
    std::string line = pem.substr(pem.size() / 2, 50);
    lines.emplace_back(line);
    wipe(pem);
    wipe(const_cast<std::string&>(issued.key_pem));
  }
  const int before = lines[0].found();
  const int password_before = secret.found();
  tls::ContextOptions options;
  options.identities.resize(1);
  options.identities[0].certificate_file = dir / "cert.pem";
  options.identities[0].key_file = dir / "key.pem";
  const auto plain = tls::Context::server(options);
  EXPECT_TRUE(plain);
  EXPECT_EQ(lines[0].found(), before);
  options.identities[0].key_file = dir / "encrypted.pem";
  options.identities[0].password = [&]() -> Result<std::string> { return secret.text(); };
  const auto encrypted = tls::Context::server(options);
  EXPECT_TRUE(encrypted);
  EXPECT_LE(secret.found(), password_before);
}

// A key that was used, once everybody who could use it is gone.
TEST(TlsResidue, NothingIsLeftOfAKeyWithoutItsContext) {
  if (kSanitized) GTEST_SKIP() << "its memory is too large to be searched";
  std::vector<Needle> in_memory;
  std::vector<Needle> in_files;
  const TempDirectory dir;
  {
    const Issued issued = tls_world().authority.issue({.names = {"DNS:localhost"}, .rsa = true});
    make_file(dir / "key.pem", issued.key_pem);
    make_file(dir / "cert.pem", issued.certificate_pem);
    SecretNumbers numbers = secret_numbers(issued.key_pem);
    wipe(const_cast<std::string&>(issued.key_pem));
    // Parts from the middle: whatever stands around them, or has overwritten their ends.
    for (std::string& number : numbers.in_memory) {
      std::string part = number.substr(40, 48);
      wipe(number);
      in_memory.emplace_back(part);
    }
    for (std::string& number : numbers.in_files) {
      std::string part = number.substr(40, 48);
      wipe(number);
      in_files.emplace_back(part);
    }
  }
  std::vector<int> before;
  for (const Needle& needle : in_files)
    before.push_back(needle.found());
  for (const Needle& needle : in_memory)
    ASSERT_EQ(needle.found(), 0);
  run_fiber_test(fiber_test_options(2), [&] {
    tls::ContextOptions options;
    options.identities.resize(1);
    options.identities[0].certificate_file = dir / "cert.pem";
    options.identities[0].key_file = dir / "key.pem";
    const auto context = make_server(options);
    for (const auto version : {tls::Version::tls1_2, tls::Version::tls1_3}) {
      auto client = client_options();
      client.max_version = version;
      TlsPair pair(make_client(client), context);
      pair.establish();
    }
    EXPECT_GT(in_memory[0].found(), 0);  // it can be found
  });
  for (const Needle& needle : in_memory)
    EXPECT_EQ(needle.found(), 0);
  for (std::size_t i = 0; i < in_files.size(); ++i)
    EXPECT_LE(in_files[i].found(), before[i]);
}

}  // namespace
}  // namespace runloom::test
