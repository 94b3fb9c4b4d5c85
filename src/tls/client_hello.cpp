// The first message of a client, between OpenSSL and the program's handler.
//
// The handler may park and OpenSSL must not be left by a switch. So the callback, called first,
// notes what the client said and has OpenSSL return; the fiber asks the handler, and when the
// handshake goes on the callback is called once more and has the answer.
#include <openssl/err.h>

#include <algorithm>

#include "engine.hpp"

namespace runloom::tls {
namespace {

// A hello may carry some 30,000 names of one letter, which would be a megabyte of strings for each
// client that then says nothing more.
constexpr std::size_t kMostProtocols = 256;
constexpr std::size_t kLongestName = 255;

// The extension's bytes, empty without it.
std::span<const unsigned char> extension(SSL* ssl, unsigned int type) noexcept {
  const unsigned char* data = nullptr;
  std::size_t size = 0;
  if (SSL_client_hello_get0_ext(ssl, type, &data, &size) != 1) return {};
  return {data, size};
}

// A big-endian length of `width` bytes and what follows it; false when it doesn't fit.
bool take_vector(std::span<const unsigned char>& from, std::size_t width,
                 std::span<const unsigned char>& out) noexcept {
  if (from.size() < width) return false;
  std::size_t size = 0;
  for (std::size_t i = 0; i < width; ++i)
    size = size << 8 | from[i];
  if (from.size() - width < size) return false;
  out = from.subspan(width, size);
  from = from.subspan(width + size);
  return true;
}

std::string text(std::span<const unsigned char> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// RFC 6066, 3. OpenSSL refuses what is malformed itself, later; here that is no name.
std::string server_name(std::span<const unsigned char> bytes) {
  std::span<const unsigned char> list;
  if (!take_vector(bytes, 2, list)) return {};
  while (!list.empty()) {
    const unsigned char type = list[0];
    list = list.subspan(1);
    std::span<const unsigned char> name;
    if (!take_vector(list, 2, name)) return {};
    if (type != TLSEXT_NAMETYPE_host_name) continue;
    std::string lower = text(name);
    if (lower.find('\0') != std::string::npos || lower.size() > kLongestName) return {};
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return lower;
  }
  return {};
}

// RFC 7301, 3.1.
std::vector<std::string> protocols(std::span<const unsigned char> bytes) {
  std::vector<std::string> out;
  std::span<const unsigned char> list;
  if (!take_vector(bytes, 2, list)) return out;
  std::span<const unsigned char> name;
  while (out.size() < kMostProtocols && take_vector(list, 1, name))
    out.push_back(text(name));
  return out;
}

}  // namespace

int Engine::on_client_hello(int* alert) noexcept {
  if (!hello_handler() && hello_state_ == Hello::none) return SSL_CLIENT_HELLO_SUCCESS;
  switch (hello_state_) {
    case Hello::none:
      try {
        read_hello(ssl_.get());
      } catch (...) {  // out of memory
        *alert = SSL_AD_INTERNAL_ERROR;
        return SSL_CLIENT_HELLO_ERROR;
      }
      hello_state_ = Hello::asked;
      return SSL_CLIENT_HELLO_RETRY;
    case Hello::asked:
      return SSL_CLIENT_HELLO_RETRY;
    case Hello::answered:
      break;
  }
  // Also for the second hello, after a HelloRetryRequest.
  if (hello_alert_ == 0) return SSL_CLIENT_HELLO_SUCCESS;
  *alert = hello_alert_;
  return SSL_CLIENT_HELLO_ERROR;
}

void Engine::read_hello(SSL* ssl) {
  hello_.server_name = server_name(extension(ssl, TLSEXT_TYPE_server_name));
  hello_.alpn = protocols(extension(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation));
}

void Engine::answer_hello(std::shared_ptr<const Context::State> context, int alert) noexcept {
  hello_state_ = Hello::answered;
  hello_alert_ = alert;
  hello_ = {};
  if (alert != 0 || !context || context == context_) return;
  begin_call();
  SSL* const ssl = ssl_.get();
  SSL_CTX* const to = context->ssl.get();
  // This takes over certificates, roots, ALPN and, as the connection has none of its own, the name
  // under which sessions are resumed, so that no session of one context opens another. The rest an
  // SSL object has copied when it was made.
  SSL_set_SSL_CTX(ssl, to);
  SSL_set_verify(ssl, SSL_CTX_get_verify_mode(to), nullptr);
  SSL_clear_options(ssl, SSL_get_options(ssl));
  SSL_set_options(ssl, SSL_CTX_get_options(to));
  SSL_set_min_proto_version(ssl, static_cast<int>(SSL_CTX_get_min_proto_version(to)));
  SSL_set_max_proto_version(ssl, static_cast<int>(SSL_CTX_get_max_proto_version(to)));
  SSL_set_num_tickets(ssl, SSL_CTX_get_num_tickets(to));
  if (!context->cipher_suites.empty()) SSL_set_ciphersuites(ssl, context->cipher_suites.c_str());
  if (!context->groups.empty()) SSL_set1_groups_list(ssl, context->groups.c_str());
  context_ = std::move(context);
  ERR_clear_error();
}

}  // namespace runloom::tls
