#include "support/tls_pki.hpp"

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdlib>
#include <iostream>

namespace runloom::test {
namespace {

struct Free {
  void operator()(BIO* bio) const noexcept { BIO_free(bio); }
  void operator()(X509* certificate) const noexcept { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

void require(bool ok, const char* what) {
  if (ok) return;
  std::cerr << "test certificates: " << what << " failed\n";
  std::abort();
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string pem_of(X509* certificate) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_X509(bio.get(), certificate) == 1, "PEM");
  return text_of(bio.get());
}

std::string pem_of(EVP_PKEY* key) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
          "PEM");
  return text_of(bio.get());
}

Owned<EVP_PKEY> key_of(const std::string& pem) {
  const Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  require(key != nullptr, "reading a key");
  return key;
}

Owned<EVP_PKEY> new_key(bool rsa) {
  Owned<EVP_PKEY> key(rsa ? EVP_RSA_gen(2048) : EVP_EC_gen("P-256"));
  require(key != nullptr, "a key");
  return key;
}

void add_extension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str());
  require(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, "an extension");
  X509_EXTENSION_free(extension);
}

Owned<X509> new_certificate(const CertificateSpec& spec, EVP_PKEY* key, X509* issuer,
                            EVP_PKEY* issuer_key, bool authority) {
  static std::atomic<long> serial{1};
  Owned<X509> certificate(X509_new());
  X509* const x = certificate.get();
  require(x && X509_set_version(x, X509_VERSION_3) == 1, "a certificate");
  ASN1_INTEGER_set(X509_get_serialNumber(x), serial.fetch_add(1));
  X509_gmtime_adj(X509_getm_notBefore(x), static_cast<long>(spec.valid_from.count()));
  X509_gmtime_adj(X509_getm_notAfter(x), static_cast<long>(spec.valid_until.count()));
  X509_NAME* const subject = X509_get_subject_name(x);
  require(X509_NAME_add_entry_by_txt(
              subject, "CN", MBSTRING_UTF8,
              reinterpret_cast<const unsigned char*>(spec.common_name.c_str()), -1, -1, 0) == 1,
          "a subject");
  require(X509_set_issuer_name(x, issuer ? X509_get_subject_name(issuer) : subject) == 1 &&
              X509_set_pubkey(x, key) == 1,
          "an issuer");
  X509* const by = issuer ? issuer : x;
  add_extension(x, by, NID_basic_constraints, authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
  add_extension(x, by, NID_subject_key_identifier, "hash");
  if (issuer) add_extension(x, by, NID_authority_key_identifier, "keyid");
  add_extension(x, by, NID_key_usage,
                authority ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature");
  if (!authority) add_extension(x, by, NID_ext_key_usage, "serverAuth,clientAuth");
  std::string names;
  for (const std::string& name : spec.names)
    names += (names.empty() ? "" : ",") + name;
  if (!names.empty()) add_extension(x, by, NID_subject_alt_name, names);
  require(X509_sign(x, issuer_key, EVP_sha256()) != 0, "signing");
  return certificate;
}

}  // namespace

struct Authority::Pair {
  Owned<EVP_PKEY> key;
  Owned<X509> certificate;
};

Authority::Authority(std::string_view name) : Authority(name, nullptr) {}
Authority::~Authority() = default;
Authority::Authority(Authority&&) noexcept = default;

Authority::Authority(std::string_view name, const Authority* issuer)
    : pair_(std::make_unique<Pair>()) {
  CertificateSpec spec;
  spec.common_name = name;
  pair_->key = new_key(false);
  pair_->certificate =
      new_certificate(spec, pair_->key.get(), issuer ? issuer->pair_->certificate.get() : nullptr,
                      issuer ? issuer->pair_->key.get() : pair_->key.get(), true);
  pem_ = pem_of(pair_->certificate.get());
  if (issuer) chain_ = pem_ + issuer->chain_;
}

Authority Authority::intermediate(std::string_view name) const {
  return Authority(name, this);
}

Issued Authority::issue(const CertificateSpec& spec) const {
  const auto key = new_key(spec.rsa);
  const auto certificate =
      new_certificate(spec, key.get(), pair_->certificate.get(), pair_->key.get(), false);
  return {pem_of(certificate.get()) + chain_, pem_of(key.get())};
}

SecretNumbers secret_numbers(const std::string& rsa_key_pem) {
  const auto key = key_of(rsa_key_pem);
  SecretNumbers out;
  for (const char* name : {OSSL_PKEY_PARAM_RSA_FACTOR1, OSSL_PKEY_PARAM_RSA_D}) {
    BIGNUM* number = nullptr;
    require(EVP_PKEY_get_bn_param(key.get(), name, &number) == 1, "reading an RSA key");
    std::string bytes(static_cast<std::size_t>(BN_num_bytes(number)), '\0');
    auto* const at = reinterpret_cast<unsigned char*>(bytes.data());
    BN_bn2lebinpad(number, at, static_cast<int>(bytes.size()));
    out.in_memory.push_back(bytes);
    BN_bn2bin(number, at);
    out.in_files.push_back(bytes);
    OPENSSL_cleanse(bytes.data(), bytes.size());
    BN_clear_free(number);
  }
  return out;
}

std::string encrypted_key(const std::string& key_pem, const std::string& password) {
  const auto key = key_of(key_pem);
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_PKCS8PrivateKey(bio.get(), key.get(), EVP_aes_128_cbc(), password.data(),
                                        static_cast<int>(password.size()), nullptr, nullptr) == 1,
          "encrypting a key");
  return text_of(bio.get());
}

std::string encrypted_key_old(const std::string& key_pem, const std::string& password) {
  const auto key = key_of(key_pem);
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_PrivateKey_traditional(
              bio.get(), key.get(), EVP_aes_128_cbc(),
              reinterpret_cast<const unsigned char*>(password.data()),
              static_cast<int>(password.size()), nullptr, nullptr) == 1,
          "encrypting a key");
  return text_of(bio.get());
}

}  // namespace runloom::test
