// What a stream tells about its connection.
#include <openssl/err.h>
#include <openssl/x509.h>

#include <array>

#include "core.hpp"
#include "openssl_error.hpp"

namespace runloom::tls {
namespace {

void add_certificate(std::vector<Bytes>& out, X509* certificate) {
  const int size = i2d_X509(certificate, nullptr);
  if (size <= 0) return;
  Bytes der(static_cast<std::size_t>(size));
  auto* at = reinterpret_cast<unsigned char*>(der.data());
  i2d_X509(certificate, &at);
  out.push_back(std::move(der));
}

}  // namespace

bool Stream::established() const noexcept {
  return core_ && core_->established.load(std::memory_order_acquire);
}

std::optional<Version> Stream::version() const {
  if (!established()) return std::nullopt;
  const Core::Hold hold(core_->lock);
  return SSL_version(core_->engine.ssl()) >= TLS1_3_VERSION ? Version::tls1_3 : Version::tls1_2;
}

std::string Stream::cipher() const {
  if (!established()) return {};
  const Core::Hold hold(core_->lock);
  const SSL_CIPHER* const cipher = SSL_get_current_cipher(core_->engine.ssl());
  return cipher ? SSL_CIPHER_get_name(cipher) : "";
}

int Stream::cipher_bits() const {
  if (!established()) return 0;
  const Core::Hold hold(core_->lock);
  const SSL_CIPHER* const cipher = SSL_get_current_cipher(core_->engine.ssl());
  return cipher ? SSL_CIPHER_get_bits(cipher, nullptr) : 0;
}

std::size_t Stream::pending() const {
  if (!established()) return 0;
  const Core::Hold hold(core_->lock);
  std::size_t count = 0;
  return core_->engine.peek(count) == Engine::Step::done ? count : 0;
}

std::string Stream::alpn() const {
  if (!established()) return {};
  const Core::Hold hold(core_->lock);
  const unsigned char* name = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(core_->engine.ssl(), &name, &size);
  return {reinterpret_cast<const char*>(name), size};
}

std::string Stream::server_name() const {
  if (!established()) return {};
  const Core::Hold hold(core_->lock);
  const char* const name = SSL_get_servername(core_->engine.ssl(), TLSEXT_NAMETYPE_host_name);
  return name ? name : "";
}

bool Stream::session_reused() const {
  if (!established()) return false;
  const Core::Hold hold(core_->lock);
  return SSL_session_reused(core_->engine.ssl()) == 1;
}

std::vector<Bytes> Stream::peer_certificates() const {
  std::vector<Bytes> out;
  if (!established()) return out;
  const Core::Hold hold(core_->lock);
  SSL* const ssl = core_->engine.ssl();
  X509* const own = SSL_get0_peer_certificate(ssl);
  if (!own) return out;
  add_certificate(out, own);
  // A client's chain begins with the server's own certificate, a server's does not have the
  // client's.
  STACK_OF(X509)* const chain = SSL_get_peer_cert_chain(ssl);
  const int first = core_->engine.context()->role == Role::client ? 1 : 0;
  for (int i = first; chain && i < sk_X509_num(chain); ++i)
    add_certificate(out, sk_X509_value(chain, i));
  return out;
}

Session Stream::session() const {
  if (!established()) return {};
  const Core::Hold hold(core_->lock);
  return Session(core_->engine.session());
}

Result<Bytes> Stream::export_keying_material(std::string_view label,
                                             std::span<const std::byte> context,
                                             std::size_t size) const {
  if (!core_) return fail(Errc::closed);
  if (!established()) return Unexpected{tls_error(TlsErrc::not_established)};
  Bytes out(size);
  const Core::Hold hold(core_->lock);
  ERR_clear_error();
  if (SSL_export_keying_material(core_->engine.ssl(), reinterpret_cast<unsigned char*>(out.data()),
                                 size, label.data(), label.size(),
                                 reinterpret_cast<const unsigned char*>(context.data()),
                                 context.size(), 1) != 1)
    return Unexpected{take_error(TlsErrc::protocol)};
  return out;
}

Result<Bytes> Stream::channel_binding() const {
  return export_keying_material("EXPORTER-Channel-Binding", {}, 32);
}

std::string Stream::explain(std::error_code error) const {
  std::string text = error.message();
  if (!core_) return text;
  const std::string host = core_->engine.host();
  if (host.empty()) return text;
  if (error == TlsErrc::certificate) {
    const int check = tls_detail(error);
    if (check == X509_V_ERR_HOSTNAME_MISMATCH || check == X509_V_ERR_IP_ADDRESS_MISMATCH)
      return text + ", certificate is not valid for '" + host + "'";
  }
  return text + " (host '" + host + "')";
}

unsigned Stream::blocked_on() const noexcept {
  return core_ ? core_->blocked_on.load() : 0;
}

net::Stream* Stream::below() const noexcept {
  return core_ && !core_->closed ? core_->below.get() : nullptr;
}

}  // namespace runloom::tls
