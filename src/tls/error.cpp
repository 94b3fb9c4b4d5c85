#include "runloom/tls/error.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cerrno>
#include <string>

#include "openssl_error.hpp"

namespace runloom::tls {
namespace {

// A code's value: the kind above, the detail below.
constexpr int kDetailBits = 20;
constexpr int kDetailMask = (1 << kDetailBits) - 1;
// OpenSSL's reasons, as a detail: the library above, the reason below.
constexpr int kReasonBits = 12;

TlsErrc kind_of(int value) noexcept {
  return static_cast<TlsErrc>(value >> kDetailBits);
}

// OpenSSL loads its texts with its first connection; a code may be asked about before that.
const char* reason_string(unsigned long code) {
  OPENSSL_init_ssl(OPENSSL_INIT_LOAD_SSL_STRINGS | OPENSSL_INIT_LOAD_CRYPTO_STRINGS, nullptr);
  return ERR_reason_error_string(code);
}

std::string reason_text(int detail) {
  const unsigned long code =
      ERR_PACK(static_cast<unsigned long>(detail >> kReasonBits), 0,
               static_cast<unsigned long>(detail & ((1 << kReasonBits) - 1)));
  const char* text = reason_string(code);
  return text ? text : "reason " + std::to_string(detail & ((1 << kReasonBits) - 1));
}

// OpenSSL's texts, and for what it has none for (3.0 knows not all of TLS 1.3) RFC 8446's.
std::string alert_text(int alert) {
  switch (alert) {
    case SSL_AD_MISSING_EXTENSION:
      return "missing extension";
    case SSL_AD_CERTIFICATE_REQUIRED:
      return "certificate required";
    default:
      return SSL_alert_desc_string_long(alert);
  }
}

const char* text_of(TlsErrc kind) noexcept {
  switch (kind) {
    case TlsErrc::protocol:
      return "TLS failed";
    case TlsErrc::alert:
      return "the peer sent a TLS alert";
    case TlsErrc::certificate:
      return "certificate verify failed";
    case TlsErrc::unexpected_eof:
      return "the peer ended the connection without close_notify (unexpected eof)";
    case TlsErrc::data_after_close_notify:
      return "application data after close notify";
    case TlsErrc::write_ended:
      return "a write after close_notify was sent";
    case TlsErrc::not_established:
      return "the TLS handshake is not complete";
    case TlsErrc::flood:
      return "the peer sent too many TLS messages without data";
    case TlsErrc::configuration:
      return "the TLS context can't be made";
    case TlsErrc::refused:
      return "the client's hello was refused";
  }
  return "unknown TLS error";
}

class TlsCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "runloom.tls"; }
  std::string message(int value) const override {
    const TlsErrc kind = kind_of(value);
    const int detail = value & kDetailMask;
    std::string text = text_of(kind);
    if (detail == 0) return text;
    text += ": ";
    switch (kind) {
      case TlsErrc::alert:
        return text + alert_text(detail) + " (" + std::to_string(detail) + ")";
      case TlsErrc::certificate:
        return text + X509_verify_cert_error_string(detail);
      default:
        return text + reason_text(detail);
    }
  }
  // Codes equal their kind, whatever the detail.
  bool equivalent(const std::error_code& code, int condition) const noexcept override {
    return code.category() == *this && (code.value() >> kDetailBits) == condition;
  }
};

}  // namespace

const std::error_category& tls_category() noexcept {
  static const TlsCategory category;
  return category;
}

std::error_code tls_error(TlsErrc kind, int detail) noexcept {
  return {static_cast<int>(kind) << kDetailBits | (detail & kDetailMask), tls_category()};
}

int tls_detail(std::error_code error) noexcept {
  return error.category() == tls_category() ? error.value() & kDetailMask : 0;
}

std::string reason_of(std::error_code error) {
  const auto of_ssl = [](int reason) {
    const char* const text =
        reason_string(ERR_PACK(ERR_LIB_SSL, 0, static_cast<unsigned long>(reason)));
    return std::string(text ? text : "");
  };
  if (error.category() != tls_category()) return {};
  const int detail = tls_detail(error);
  switch (kind_of(error.value())) {
    case TlsErrc::alert:
      return of_ssl(SSL_AD_REASON_OFFSET + detail);
    case TlsErrc::certificate:
      return of_ssl(SSL_R_CERTIFICATE_VERIFY_FAILED);
    case TlsErrc::unexpected_eof:
      return of_ssl(SSL_R_UNEXPECTED_EOF_WHILE_READING);
    case TlsErrc::data_after_close_notify:
      return of_ssl(SSL_R_APPLICATION_DATA_AFTER_CLOSE_NOTIFY);
    case TlsErrc::write_ended:
      return of_ssl(SSL_R_PROTOCOL_IS_SHUTDOWN);
    default:
      return detail == 0 ? std::string() : reason_text(detail);
  }
}

std::string verify_message_of(std::error_code error) {
  return error == TlsErrc::certificate ? X509_verify_cert_error_string(tls_detail(error)) : "";
}

std::error_condition make_error_condition(TlsErrc kind) noexcept {
  return {static_cast<int>(kind), tls_category()};
}

std::error_code code_of(unsigned long openssl_error, TlsErrc kind) noexcept {
  if (ERR_SYSTEM_ERROR(openssl_error))
    return {ERR_GET_REASON(openssl_error), std::system_category()};
  const int library = ERR_GET_LIB(openssl_error);
  const int reason = ERR_GET_REASON(openssl_error);
  if (reason == ERR_R_MALLOC_FAILURE) return {ENOMEM, std::system_category()};
  if (kind == TlsErrc::protocol && library == ERR_LIB_SSL && reason > SSL_AD_REASON_OFFSET &&
      reason < SSL_AD_REASON_OFFSET + 256)
    return tls_error(TlsErrc::alert, reason - SSL_AD_REASON_OFFSET);
  return tls_error(kind, (library & 0xff) << kReasonBits | (reason & ((1 << kReasonBits) - 1)));
}

std::error_code take_error(TlsErrc kind) noexcept {
  // What a handshake failed with was queued last; in a file that can't be parsed the cause is
  // first.
  const unsigned long error =
      kind == TlsErrc::configuration ? ERR_peek_error() : ERR_peek_last_error();
  ERR_clear_error();
  return error == 0 ? tls_error(kind) : code_of(error, kind);
}

}  // namespace runloom::tls
