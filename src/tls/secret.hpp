// Memory for keys and passwords, which leaves nothing behind.
#pragma once

#include <openssl/crypto.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace runloom::tls {

class Secret {
 public:
  Secret() = default;
  explicit Secret(std::size_t size) : bytes_(size) {}
  // Takes the text's characters and wipes it.
  explicit Secret(std::string& text) : bytes_(text.begin(), text.end()) {
    OPENSSL_cleanse(text.data(), text.size());
    text.clear();
  }
  Secret(Secret&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Secret& operator=(Secret&& other) noexcept {
    bytes_.swap(other.bytes_);
    return *this;
  }
  ~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

  char* data() noexcept { return bytes_.data(); }
  std::size_t size() const noexcept { return bytes_.size(); }
  std::string_view view() const noexcept { return {bytes_.data(), bytes_.size()}; }

 private:
  std::vector<char> bytes_;
};

}  // namespace runloom::tls
