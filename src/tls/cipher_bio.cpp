#include "cipher_bio.hpp"

#include <algorithm>
#include <cstring>

namespace runloom::tls {

std::size_t Inbox::take(std::span<std::byte> buffer) noexcept {
  if (early_used_ < early_.size()) {
    const std::size_t count = std::min(buffer.size(), early_.size() - early_used_);
    std::memcpy(buffer.data(), early_.data() + early_used_, count);
    early_used_ += count;
    if (early_used_ == early_.size()) {
      std::string().swap(early_);
      early_used_ = 0;
    }
    return count;
  }
  if (!chunk_) return 0;
  const std::size_t count = std::min(buffer.size(), chunk_->size());
  std::memcpy(buffer.data(), chunk_->data() + chunk_->begin, count);
  chunk_->begin += static_cast<std::uint32_t>(count);
  if (chunk_->size() == 0) chunk_.reset();
  return count;
}

std::string Inbox::take_all() {
  std::string all = early_.substr(early_used_);
  if (chunk_)
    all.append(reinterpret_cast<const char*>(chunk_->data()) + chunk_->begin, chunk_->size());
  early_.clear();
  early_used_ = 0;
  chunk_.reset();
  return all;
}

namespace {

CipherPort& port_of(BIO* bio) noexcept {
  return *static_cast<CipherPort*>(BIO_get_data(bio));
}

int bio_write(BIO* bio, const char* data, int size) noexcept {
  BIO_clear_retry_flags(bio);
  CipherPort& port = port_of(bio);
  if (port.out.append({reinterpret_cast<const std::byte*>(data), static_cast<std::size_t>(size)}))
    return size;
  port.out_of_memory = true;
  return -1;
}

int bio_read(BIO* bio, char* buffer, int size) noexcept {
  BIO_clear_retry_flags(bio);
  CipherPort& port = port_of(bio);
  const std::size_t count =
      port.stopped
          ? 0
          : port.in.take({reinterpret_cast<std::byte*>(buffer), static_cast<std::size_t>(size)});
  if (count != 0) return static_cast<int>(count);
  BIO_set_retry_read(bio);
  return -1;
}

// The end of the stream below is never told to OpenSSL: it would take the connection for broken in
// both directions.
long bio_ctrl(BIO* bio, int command, long, void*) noexcept {
  switch (command) {
    case BIO_CTRL_FLUSH:
      return 1;
    case BIO_CTRL_PENDING:
      return static_cast<long>(port_of(bio).in.size());
    default:
      return 0;
  }
}

int bio_create(BIO* bio) noexcept {
  BIO_set_init(bio, 1);
  return 1;
}

const BIO_METHOD* method() noexcept {
  static const BIO_METHOD* const made = []() -> const BIO_METHOD* {
    const int type = BIO_get_new_index();
    BIO_METHOD* const m =
        type == -1 ? nullptr : BIO_meth_new(type | BIO_TYPE_SOURCE_SINK, "runloom");
    if (!m) return nullptr;
    if (BIO_meth_set_write(m, &bio_write) != 1 || BIO_meth_set_read(m, &bio_read) != 1 ||
        BIO_meth_set_ctrl(m, &bio_ctrl) != 1 || BIO_meth_set_create(m, &bio_create) != 1) {
      BIO_meth_free(m);
      return nullptr;
    }
    return m;
  }();
  return made;
}

}  // namespace

BIO* make_cipher_bio(CipherPort& port) noexcept {
  const BIO_METHOD* const m = method();
  BIO* const bio = m ? BIO_new(m) : nullptr;
  if (bio) BIO_set_data(bio, &port);
  return bio;
}

}  // namespace runloom::tls
