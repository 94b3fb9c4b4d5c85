#include "runloom/tls/error.hpp"

#include <gtest/gtest.h>

namespace runloom::tls {
namespace {

TEST(TlsError, ComparesByKind) {
  EXPECT_EQ(tls_error(TlsErrc::alert, 116), TlsErrc::alert);
  EXPECT_NE(tls_error(TlsErrc::alert, 116), TlsErrc::certificate);
  EXPECT_NE(tls_error(TlsErrc::alert, 116), tls_error(TlsErrc::alert, 42));
  EXPECT_NE(std::error_code(), TlsErrc::alert);
  EXPECT_NE(std::error_code(16, std::system_category()), TlsErrc::protocol);
  EXPECT_EQ(tls_detail(tls_error(TlsErrc::alert, 116)), 116);
  EXPECT_EQ(tls_detail(std::error_code(116, std::system_category())), 0);
  EXPECT_STREQ(tls_category().name(), "runloom.tls");
}

TEST(TlsError, SaysWhatFailed) {
  EXPECT_EQ(tls_error(TlsErrc::alert, 116).message(),
            "the peer sent a TLS alert: certificate required (116)");
  EXPECT_EQ(tls_error(TlsErrc::alert, 112).message(),
            "the peer sent a TLS alert: unrecognized name (112)");
  EXPECT_EQ(tls_error(TlsErrc::certificate, 62).message(),
            "certificate verify failed: hostname mismatch");
  for (int kind = 1; kind <= static_cast<int>(TlsErrc::refused); ++kind)
    EXPECT_NE(tls_error(static_cast<TlsErrc>(kind)).message(), "unknown TLS error");
}

TEST(TlsError, HasTheNameThatOtherProgramsReport) {
  EXPECT_EQ(reason_of(tls_error(TlsErrc::alert, 48)), "tlsv1 alert unknown ca");
  EXPECT_EQ(reason_of(tls_error(TlsErrc::certificate, 62)), "certificate verify failed");
  EXPECT_EQ(reason_of(tls_error(TlsErrc::unexpected_eof)), "unexpected eof while reading");
  EXPECT_EQ(reason_of(tls_error(TlsErrc::flood)), "");
  EXPECT_EQ(reason_of(std::error_code(48, std::system_category())), "");
  EXPECT_EQ(verify_message_of(tls_error(TlsErrc::certificate, 62)), "hostname mismatch");
  EXPECT_EQ(verify_message_of(tls_error(TlsErrc::alert, 62)), "");
}

}  // namespace
}  // namespace runloom::tls
