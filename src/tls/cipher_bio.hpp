// The BIO between OpenSSL and a connection: ciphertext out of an inbox, ciphertext into an outbox.
// BIO_s_mem would do the same, but never gives memory back.
#pragma once

#include <openssl/bio.h>

#include <cstddef>
#include <span>
#include <string>

#include "chunk.hpp"
#include "outbox.hpp"

namespace runloom::tls {

// Ciphertext that has come and that OpenSSL has not taken.
class Inbox {
 public:
  // Bytes that were read by somebody else; before anything was fed.
  void begin_with(std::string received) noexcept { early_ = std::move(received); }
  // The inbox must be empty.
  void feed(ChunkPtr chunk) noexcept { chunk_ = std::move(chunk); }
  std::size_t size() const noexcept {
    return early_.size() - early_used_ + (chunk_ ? chunk_->size() : 0);
  }
  std::size_t take(std::span<std::byte> buffer) noexcept;
  // All of it, leaving nothing.
  std::string take_all();

 private:
  std::string early_;
  std::size_t early_used_ = 0;
  ChunkPtr chunk_;
};

// What the BIO stands on. It may neither park nor fail for want of the peer.
struct CipherPort {
  Inbox in;
  Outbox out;
  bool out_of_memory = false;
  // Nothing more is to be read, whatever is there.
  bool stopped = false;
};

// A BIO for `port`, which must outlive it; null without memory.
BIO* make_cipher_bio(CipherPort& port) noexcept;

}  // namespace runloom::tls
