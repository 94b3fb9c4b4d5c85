// Context: what connections share: certificates, whom to trust, versions, ciphers, sessions.
//
// A context never changes once it was made. It may be used on all threads at the same time, and
// lives as long as any connection that uses it; copies are handles of the same one. To change a
// certificate, make a new context and give that to new connections.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runloom/sched/result.hpp"
#include "runloom/tls/error.hpp"

namespace runloom::tls {

enum class Role : std::uint8_t { client, server };
enum class Version : std::uint8_t { tls1_2, tls1_3 };
const char* to_string(Version version) noexcept;  // "TLSv1.2", "TLSv1.3"

enum class ClientCertificates : std::uint8_t {
  none,      // not asked for
  optional,  // verified when the client sends one
  required,
};

// Who we are: a certificate with those between it and a root, in this order, and its key. PEM, as
// text or in files; the key may stand in the certificates' file.
struct Identity {
  std::string certificate_pem{};
  std::string certificate_file{};  // when there is no text
  std::string key_pem{};
  std::string key_file{};  // when there is no text; neither: where the certificates are
  // Asked when the key is encrypted, on the fiber that makes the context; may park.
  std::function<Result<std::string>()> password{};
};

// What a client said in its first message.
struct ClientHello {
  std::string server_name{};        // in lower case; empty when it named none
  std::vector<std::string> alpn{};  // the protocols that it offers; at most the first 256
};

class Context;

// Called for each handshake of a server, once, on the fiber that makes the handshake and outside
// of OpenSSL: it may park. Gives the context to go on with, or none to keep this one. An error
// refuses the client, with the alert that it names (TlsErrc::alert) or else unrecognized_name, and
// is what the handshake fails with. What it throws comes out of the handshake, after an
// internal_error alert.
using ClientHelloHandler = std::function<Result<std::optional<Context>>(const ClientHello&)>;

struct ContextOptions {
  // Several: of different kinds of keys, of which the peer's abilities choose.
  std::vector<Identity> identities{};

  // A client verifies the server, a server the certificates that it asks for. A client that does
  // not verify talks to anybody.
  bool verify = true;
  bool check_host = true;  // the client: that the certificate is for the host
  // Whom to trust. `system_roots` counts for a client only, and only when no other is named.
  bool system_roots = true;
  bool add_system_roots = false;  // beside those that are named, and of a server, too
  std::string ca_pem{};
  std::string ca_file{};
  std::string ca_path{};  // a folder with hashed names, see openssl-rehash(1)
  ClientCertificates client_certificates = ClientCertificates::none;

  Version min_version = Version::tls1_2;
  Version max_version = Version::tls1_3;
  std::string ciphers{};        // of TLS 1.2, in OpenSSL's notation; empty: its default
  std::string cipher_suites{};  // of TLS 1.3
  std::string groups{};         // of the key exchange

  // Protocols above TLS, the preferred first. A server chooses the first of its own that the
  // client offers as well; where there is none it refuses, or, with `alpn_required` false, goes on
  // without.
  std::vector<std::string> alpn{};
  bool alpn_required = true;

  // Sessions may be resumed: by tickets, or, where those are off, from a server's cache.
  bool sessions = true;
  bool session_tickets = true;
  std::size_t session_cache_size = 20 * 1024;  // sessions
  std::chrono::seconds session_lifetime{7200};

  // The peer's end without close_notify is an end like any other. For protocols that know
  // themselves whether what came is whole.
  bool ignore_truncation = false;

  ClientHelloHandler on_client_hello{};
};

class Context {
 public:
  // Reads the files and parses all of it on the blocking pool; parks, is a cancel point. Fails with
  // the error of a file, with TlsErrc::configuration, with what a password callable failed with;
  // `problem` then says what is wrong with which file. Off a fiber it blocks.
  static Result<Context> client(const ContextOptions& options = {}, std::string* problem = nullptr);
  static Result<Context> server(const ContextOptions& options, std::string* problem = nullptr);

  // None; using it is a broken contract.
  Context() = default;
  explicit operator bool() const noexcept { return state_ != nullptr; }

  struct State;  // opaque
  explicit Context(std::shared_ptr<const State> state) noexcept : state_(std::move(state)) {}
  const std::shared_ptr<const State>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace runloom::tls
