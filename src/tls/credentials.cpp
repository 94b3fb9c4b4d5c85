#include "credentials.hpp"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "openssl_error.hpp"

namespace runloom::tls {
namespace {

struct Free {
  void operator()(BIO* bio) const noexcept { BIO_free(bio); }
  void operator()(X509* certificate) const noexcept { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
  void operator()(STACK_OF(X509) * chain) const noexcept { sk_X509_pop_free(chain, &X509_free); }
  void operator()(STACK_OF(X509_NAME) * names) const noexcept {
    sk_X509_NAME_pop_free(names, &X509_NAME_free);
  }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

constexpr off_t kMostBytes = 16 * 1024 * 1024;

Unexpected refuse(std::string& problem, std::string what) {
  const std::error_code error = take_error(TlsErrc::configuration);
  problem = std::move(what);
  if (tls_detail(error) != 0) problem += " (" + error.message() + ")";
  return Unexpected{error};
}

Owned<BIO> bio_of(std::string_view text) {
  return Owned<BIO>(
      BIO_new_mem_buf(text.empty() ? "" : text.data(), static_cast<int>(text.size())));
}

// The next certificate; null at the end, with the queue empty unless something is wrong.
Owned<X509> next_certificate(BIO* bio) {
  Owned<X509> certificate(PEM_read_bio_X509_AUX(bio, nullptr, nullptr, nullptr));
  const unsigned long last = ERR_peek_last_error();
  if (!certificate && ERR_GET_LIB(last) == ERR_LIB_PEM &&
      ERR_GET_REASON(last) == PEM_R_NO_START_LINE)
    ERR_clear_error();
  return certificate;
}

// Never asks on the terminal.
int give_password(char* buffer, int size, int, void* secret) noexcept {
  const std::string_view password = static_cast<const Secret*>(secret)->view();
  if (size < 0 || password.size() > static_cast<std::size_t>(size)) return -1;
  std::memcpy(buffer, password.data(), password.size());
  return static_cast<int>(password.size());
}

}  // namespace

Result<Secret> read_whole_file(const std::string& path) {
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) ::close(number);
    }
  } fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (fd.number < 0) return fail(last_errno());
  struct stat status;
  if (::fstat(fd.number, &status) != 0) return fail(last_errno());
  if (S_ISDIR(status.st_mode)) return fail_errno(EISDIR);
  if (status.st_size > kMostBytes) return fail_errno(ERANGE);
  Secret all(static_cast<std::size_t>(status.st_size));
  std::size_t filled = 0;
  while (filled < all.size()) {
    const ssize_t count = ::read(fd.number, all.data() + filled, all.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(last_errno());
    if (count == 0) return fail_errno(EIO);  // it was cut short while we read
    filled += static_cast<std::size_t>(count);
  }
  return all;
}

Result<IdentityText> read_identity(const Identity& identity, std::string& problem) {
  IdentityText out;
  const auto take = [&](const std::string& pem, const std::string& file, Secret& into,
                        std::string& from) -> Result<void> {
    if (!pem.empty()) {
      std::string copy = pem;
      into = Secret(copy);
      from = "the PEM text";
      return {};
    }
    from = file;
    auto read = read_whole_file(file);
    if (!read) {
      problem = file + ": " + read.error().message();
      return Unexpected{read.error()};
    }
    into = std::move(*read);
    return {};
  };
  if (auto ok = take(identity.certificate_pem, identity.certificate_file, out.certificate,
                     out.certificate_from);
      !ok)
    return Unexpected{ok.error()};
  out.key_from = out.certificate_from;
  if (identity.key_pem.empty() && identity.key_file.empty()) return out;
  if (auto ok = take(identity.key_pem, identity.key_file, out.key, out.key_from); !ok)
    return Unexpected{ok.error()};
  return out;
}

bool is_encrypted(std::string_view key_pem) noexcept {
  // PKCS#8, and the older form with a header in the block.
  return key_pem.find("-----BEGIN ENCRYPTED PRIVATE KEY-----") != std::string_view::npos ||
         key_pem.find("Proc-Type: 4,ENCRYPTED") != std::string_view::npos;
}

Result<void> use_identity(SSL_CTX* context, const IdentityText& identity, std::string& problem) {
  ERR_clear_error();
  const auto certificates = bio_of(identity.certificate.view());
  const auto keys = bio_of(identity.key_pem());
  Owned<STACK_OF(X509)> chain(sk_X509_new_null());
  if (!certificates || !keys || !chain) return fail_errno(ENOMEM);
  const auto own = next_certificate(certificates.get());
  if (!own) return refuse(problem, identity.certificate_from + ": no certificate can be read");
  while (auto next = next_certificate(certificates.get())) {
    if (sk_X509_push(chain.get(), next.get()) == 0) return fail_errno(ENOMEM);
    static_cast<void>(next.release());
  }
  if (ERR_peek_error() != 0)
    return refuse(problem,
                  identity.certificate_from + ": a certificate of the chain can't be read");

  const Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(keys.get(), nullptr, &give_password,
                                                    const_cast<Secret*>(&identity.password)));
  if (!key) return refuse(problem, identity.key_from + ": no private key can be read");
  if (X509_check_private_key(own.get(), key.get()) != 1)
    return refuse(problem, identity.key_from + ": not the key of the certificate in " +
                               identity.certificate_from);
  if (SSL_CTX_use_cert_and_key(context, own.get(), key.get(), chain.get(), 1) != 1)
    return refuse(problem, identity.certificate_from + ": the certificate can't be used");
  return {};
}

// ---------------------------------------------------------------- whom to trust

namespace {

// A server tells clients which authorities it trusts.
Result<void> trust_text(SSL_CTX* context, Role role, std::string_view pem, const std::string& from,
                        std::string& problem) {
  ERR_clear_error();
  const auto bio = bio_of(pem);
  if (!bio) return fail_errno(ENOMEM);
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  std::size_t count = 0;
  for (; auto certificate = next_certificate(bio.get()); ++count) {
    if (X509_STORE_add_cert(store, certificate.get()) != 1 ||
        (role == Role::server && SSL_CTX_add_client_CA(context, certificate.get()) != 1))
      return refuse(problem, from + ": a root can't be used");
  }
  if (ERR_peek_error() != 0 || count == 0)
    return refuse(problem, from + ": no root certificate can be read");
  return {};
}

}  // namespace

Result<void> trust(SSL_CTX* context, Role role, const ContextOptions& options,
                   std::string& problem) {
  bool any = false;
  if (!options.ca_pem.empty()) {
    any = true;
    if (auto ok = trust_text(context, role, options.ca_pem, "the PEM text of the roots", problem);
        !ok)
      return ok;
  }
  if (!options.ca_file.empty()) {
    any = true;
    auto text = read_whole_file(options.ca_file);
    if (!text) {
      problem = options.ca_file + ": " + text.error().message();
      return Unexpected{text.error()};
    }
    if (auto ok = trust_text(context, role, text->view(), options.ca_file, problem); !ok) return ok;
  }
  if (!options.ca_path.empty()) {
    any = true;
    struct stat status;
    if (::stat(options.ca_path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      problem = options.ca_path + ": no folder";
      return fail_errno(ENOTDIR);
    }
    if (SSL_CTX_load_verify_dir(context, options.ca_path.c_str()) != 1)
      return refuse(problem, options.ca_path + ": the roots can't be used");
  }
  const bool system =
      options.add_system_roots || (!any && role == Role::client && options.system_roots);
  if (system && SSL_CTX_set_default_verify_paths(context) != 1)
    return refuse(problem, "the system's roots can't be used");
  if (any || system || role == Role::client) return {};
  problem = "client certificates are asked for, and no root to verify them is named";
  return Unexpected{tls_error(TlsErrc::configuration)};
}

}  // namespace runloom::tls
