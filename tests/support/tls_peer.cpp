#include "support/tls_peer.hpp"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>

namespace runloom::test {
namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::cerr << "OpenSslPeer: " << what << " failed\n";
  std::abort();
}

void use_identity(SSL_CTX* context, const Issued& identity) {
  BIO* const certificates = BIO_new_mem_buf(identity.certificate_pem.data(),
                                            static_cast<int>(identity.certificate_pem.size()));
  X509* const own = PEM_read_bio_X509(certificates, nullptr, nullptr, nullptr);
  require(SSL_CTX_use_certificate(context, own) == 1, "the certificate");
  X509_free(own);
  while (X509* const next = PEM_read_bio_X509(certificates, nullptr, nullptr, nullptr))
    SSL_CTX_add0_chain_cert(context, next);
  BIO_free(certificates);
  BIO* const keys =
      BIO_new_mem_buf(identity.key_pem.data(), static_cast<int>(identity.key_pem.size()));
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(keys, nullptr, nullptr, nullptr);
  require(SSL_CTX_use_PrivateKey(context, key) == 1, "the key");
  EVP_PKEY_free(key);
  BIO_free(keys);
}

void trust(SSL_CTX* context, const std::string& pem) {
  BIO* const bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509* const root = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context), root);
  X509_free(root);
  BIO_free(bio);
}

}  // namespace

struct OpenSslPeer::Ssl {
  SSL_CTX* context = nullptr;
  SSL* ssl = nullptr;
  BIO* in = nullptr;
  BIO* out = nullptr;
  ~Ssl() {
    SSL_free(ssl);
    SSL_CTX_free(context);
  }
};

OpenSslPeer::OpenSslPeer(net::Stream& wire, const PeerOptions& options)
    : wire_(wire), segment_(options.segment), ssl_(std::make_unique<Ssl>()) {
  Ssl& s = *ssl_;
  s.context = SSL_CTX_new(options.server ? TLS_server_method() : TLS_client_method());
  if (!options.identity.certificate_pem.empty()) use_identity(s.context, options.identity);
  if (!options.trusted.empty()) {
    trust(s.context, options.trusted);
    SSL_CTX_set_verify(s.context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  if (options.version != 0) {
    const int version = options.version == 12 ? TLS1_2_VERSION : TLS1_3_VERSION;
    SSL_CTX_set_min_proto_version(s.context, version);
    SSL_CTX_set_max_proto_version(s.context, version);
  }
  if (options.renegotiation) SSL_CTX_clear_options(s.context, SSL_OP_NO_RENEGOTIATION);
  s.ssl = SSL_new(s.context);
  s.in = BIO_new(BIO_s_mem());
  s.out = BIO_new(BIO_s_mem());
  SSL_set_bio(s.ssl, s.in, s.out);
  if (options.server) {
    SSL_set_accept_state(s.ssl);
  } else {
    SSL_set_connect_state(s.ssl);
    SSL_set_tlsext_host_name(s.ssl, options.host.c_str());
  }
}

OpenSslPeer::~OpenSslPeer() {
  ERR_clear_error();
}

std::string OpenSslPeer::take_ciphertext() {
  char* data = nullptr;
  const long size = BIO_get_mem_data(ssl_->out, &data);
  std::string all(data, static_cast<std::size_t>(size));
  BIO_reset(ssl_->out);
  return all;
}

bool OpenSslPeer::flush() {
  const std::string all = take_ciphertext();
  const std::size_t step = segment_ == 0 ? all.size() : segment_;
  for (std::size_t at = 0; at < all.size(); at += step) {
    const auto sent = wire_.write_all(net::bytes(std::string_view(all).substr(at, step)));
    if (sent) continue;
    error_ = sent.error().message();
    return false;
  }
  return true;
}

bool OpenSslPeer::receive() {
  std::array<std::byte, 16384> buffer;
  const auto count = wire_.read_some(buffer);
  if (!count || *count == 0) {
    error_ = count ? "the wire has ended" : count.error().message();
    return false;
  }
  BIO_write(ssl_->in, buffer.data(), static_cast<int>(*count));
  return true;
}

template <class Call>
int OpenSslPeer::run(Call call) {
  for (;;) {
    ERR_clear_error();
    const int result = call();
    const int how = SSL_get_error(ssl_->ssl, result);
    const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
    const std::string text = reason ? reason : "";
    ERR_clear_error();
    if (!flush() && how == SSL_ERROR_NONE) return 0;
    if (how == SSL_ERROR_NONE) return result;
    if (how == SSL_ERROR_WANT_READ) {
      if (!receive()) return -1;
      continue;
    }
    if (how == SSL_ERROR_ZERO_RETURN) {
      ended_ = true;
    } else {
      error_ = text.empty() ? "SSL_get_error " + std::to_string(how) : text;
    }
    return -1;
  }
}

bool OpenSslPeer::handshake() {
  return run([&] { return SSL_do_handshake(ssl_->ssl); }) == 1;
}

bool OpenSslPeer::write(std::string_view text) {
  return run([&] { return SSL_write(ssl_->ssl, text.data(), static_cast<int>(text.size())); }) > 0;
}

bool OpenSslPeer::encrypt(std::string_view text) {
  return SSL_write(ssl_->ssl, text.data(), static_cast<int>(text.size())) > 0;
}

std::string OpenSslPeer::read(std::size_t most) {
  std::string text(most, '\0');
  const int count = run([&] { return SSL_read(ssl_->ssl, text.data(), static_cast<int>(most)); });
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

std::string OpenSslPeer::read_exact(std::size_t count) {
  std::string all;
  while (all.size() < count) {
    const std::string piece = read(std::min<std::size_t>(count - all.size(), 16384));
    if (piece.empty()) break;
    all += piece;
  }
  return all;
}

bool OpenSslPeer::close_notify() {
  const int result = SSL_shutdown(ssl_->ssl);
  ERR_clear_error();
  return flush() && result >= 0;
}

bool OpenSslPeer::update_keys(bool peer_too) {
  if (SSL_key_update(ssl_->ssl,
                     peer_too ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
    return false;
  return handshake();
}

bool OpenSslPeer::renegotiate() {
  if (SSL_renegotiate(ssl_->ssl) != 1) return false;
  ERR_clear_error();
  SSL_do_handshake(ssl_->ssl);  // sends the hello; the answer comes with the next read
  ERR_clear_error();
  return flush();
}

bool OpenSslPeer::send_tickets() {
  return SSL_new_session_ticket(ssl_->ssl) == 1 && handshake();
}

}  // namespace runloom::test
