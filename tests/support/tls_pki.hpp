// Certificates for tests, made when they are asked for: an authority, what it issues, and what is
// wrong with them on purpose.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace runloom::test {

struct CertificateSpec {
  std::string common_name = "test";
  std::vector<std::string> names{};        // "DNS:localhost", "IP:127.0.0.1"
  std::chrono::seconds valid_from{-3600};  // from now
  std::chrono::seconds valid_until{86400};
  bool rsa = false;  // 2048 bits; else P-256
};

struct Issued {
  std::string certificate_pem;  // with those of the issuers below the root
  std::string key_pem;
};

class Authority {
 public:
  explicit Authority(std::string_view name);
  ~Authority();
  Authority(Authority&&) noexcept;

  const std::string& pem() const noexcept { return pem_; }
  Issued issue(const CertificateSpec& spec) const;
  // An authority below this one.
  Authority intermediate(std::string_view name) const;

 private:
  struct Pair;
  Authority(std::string_view name, const Authority* issuer);
  std::unique_ptr<Pair> pair_;
  std::string pem_;
  std::string chain_;  // of what it issues
};

// The same key, readable with the password only.
std::string encrypted_key(const std::string& key_pem, const std::string& password);
// The secret numbers of an RSA key (one of its primes, the private exponent), as bytes in the order
// in which OpenSSL calculates with them, and in that in which files have them. Leaves no other
// copy.
struct SecretNumbers {
  std::vector<std::string> in_memory;
  std::vector<std::string> in_files;
};
SecretNumbers secret_numbers(const std::string& rsa_key_pem);
// As older programs wrote it, with a header in the block.
std::string encrypted_key_old(const std::string& key_pem, const std::string& password);

}  // namespace runloom::test
