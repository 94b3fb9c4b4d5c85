// Certificates, keys and roots: out of files and PEM text into an SSL_CTX.
#pragma once

#include <openssl/ssl.h>

#include <string>

#include "runloom/sched/result.hpp"
#include "runloom/tls/context.hpp"
#include "secret.hpp"

namespace runloom::tls {

// An identity, read and not parsed.
struct IdentityText {
  Secret certificate;
  Secret key;  // empty: stands with the certificate
  Secret password;
  std::string certificate_from;  // for messages
  std::string key_from;

  std::string_view key_pem() const noexcept { return key.size() ? key.view() : certificate.view(); }
};

// Blocks. ERANGE: more than 16 MiB.
Result<Secret> read_whole_file(const std::string& path);
// Blocks. `problem` names the file that it failed with.
Result<IdentityText> read_identity(const Identity& identity, std::string& problem);
// Whether a password is needed.
bool is_encrypted(std::string_view key_pem) noexcept;

// What follows blocks: it parses, and looks into files and folders. `problem` says what is wrong.
Result<void> use_identity(SSL_CTX* context, const IdentityText& identity, std::string& problem);
Result<void> trust(SSL_CTX* context, Role role, const ContextOptions& options,
                   std::string& problem);

}  // namespace runloom::tls
