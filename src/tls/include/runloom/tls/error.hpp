// What TLS can fail with, beside what the stream below it fails with.
//
// A code says what failed and, in its detail, which check: the number of an alert, of a
// certificate check, of a rule that the peer broke. Compared with a TlsErrc the detail does not
// count: `error == TlsErrc::certificate`. message() says both; Stream::explain() and the `problem`
// of Context::make() add what a code can't hold: the host, the file.
#pragma once

#include <string>
#include <system_error>

namespace runloom::tls {

enum class TlsErrc {
  // The peer's bytes are no TLS or break its rules, or both sides share no version or cipher.
  // The detail is OpenSSL's reason.
  protocol = 1,
  // The peer sent a fatal alert, the detail (RFC 8446, 6).
  alert,
  // The peer's certificate was refused. The detail is OpenSSL's X509_V_ERR_* value.
  certificate,
  // The stream below ended without close_notify: what was read may be a part only.
  unexpected_eof,
  // The peer sent data after our close_notify, while shutdown() waited for its own.
  data_after_close_notify,
  // A write after shutdown() or shutdown_write().
  write_ended,
  // A call that needs the handshake, before it is complete.
  not_established,
  // The peer sends messages that carry nothing (key updates, tickets, hello requests) in number.
  flood,
  // Context::make(): the options can't be used together, or a certificate, a key, or a name in them
  // can't be read. The detail is OpenSSL's reason, if it has one.
  configuration,
  // The handler of the client's hello has refused it without an error of its own.
  refused,
};

const std::error_category& tls_category() noexcept;

// A code of the category, with a detail of its kind; 0: none.
std::error_code tls_error(TlsErrc kind, int detail = 0) noexcept;
// The detail of a code, 0 for codes of other categories.
int tls_detail(std::error_code error) noexcept;

// OpenSSL's name of what failed, as other programs report it: "wrong version number", "tlsv1 alert
// unknown ca"; empty when OpenSSL has none. Any thread.
std::string reason_of(std::error_code error);
// Of a code of TlsErrc::certificate: what the check said, "certificate has expired"; else empty.
std::string verify_message_of(std::error_code error);

// For comparisons, whatever the detail.
std::error_condition make_error_condition(TlsErrc kind) noexcept;

// Some alerts that a handler of the client's hello may answer with: `fail(tls_error(TlsErrc::alert,
// kAlertUnrecognizedName))`.
inline constexpr int kAlertHandshakeFailure = 40;
inline constexpr int kAlertAccessDenied = 49;
inline constexpr int kAlertInternalError = 80;
inline constexpr int kAlertUnrecognizedName = 112;

}  // namespace runloom::tls

template <>
struct std::is_error_condition_enum<runloom::tls::TlsErrc> : std::true_type {};
