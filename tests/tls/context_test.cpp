// What makes a context, and what is wrong with one that can't be made.
#include "runloom/tls/context.hpp"

#include <string>

#include "support/files.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using tls::Context;
using tls::ContextOptions;
using tls::Identity;
using tls::TlsErrc;

// What `problem` says of a context that can't be made.
std::string problem_of(Result<Context> (*make)(const ContextOptions&, std::string*),
                       const ContextOptions& options, std::error_code* error = nullptr) {
  std::string problem;
  const auto made = make(options, &problem);
  EXPECT_FALSE(made);
  if (error) *error = made.error();
  return problem;
}
std::string server_problem(const ContextOptions& options, std::error_code* error = nullptr) {
  return problem_of(&Context::server, options, error);
}
std::string client_problem(const ContextOptions& options, std::error_code* error = nullptr) {
  return problem_of(&Context::client, options, error);
}
ContextOptions with(Identity identity) {
  ContextOptions options;
  options.identities.push_back(std::move(identity));
  return options;
}
void expect_part(const std::string& text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}
FIBER_TEST(TlsContext, ReadsFiles) {
  const TempDirectory dir;
  const Issued& issued = tls_world().server;
  make_file((dir / "cert.pem"), issued.certificate_pem);
  make_file((dir / "key.pem"), issued.key_pem);
  make_file((dir / "both.pem"), issued.key_pem + issued.certificate_pem);
  make_file((dir / "ca.pem"), "# roots\n" + tls_world().authority.pem());
  Identity two;
  two.certificate_file = (dir / "cert.pem");
  two.key_file = (dir / "key.pem");
  Identity one;
  one.certificate_file = (dir / "both.pem");
  ContextOptions trusting;
  trusting.ca_file = (dir / "ca.pem");
  std::string problem = "old";
  const auto client = Context::client(trusting, &problem);
  ASSERT_TRUE(client) << problem;
  EXPECT_EQ(problem, "");
  for (const Identity& identity : {one, two}) {
    const auto server = Context::server(with(identity), &problem);
    ASSERT_TRUE(server) << problem;
    TlsPair pair(*client, *server);
    pair.establish();
  }
}

// SSL_CERT_FILE stands for the system's roots.
FIBER_TEST(TlsContext, TheSystemsRootsMayStandBesideOthers) {
  const TempDirectory dir;
  make_file((dir / "system.pem"), tls_world().authority.pem());
  ASSERT_EQ(::setenv("SSL_CERT_FILE", (dir / "system.pem").c_str(), 1), 0);
  ContextOptions options;
  options.ca_pem = tls_world().stranger.pem();
  const Context without = make_client(options);
  options.add_system_roots = true;
  const Context with_them = make_client(options);
  ContextOptions mutual = server_options();
  mutual.client_certificates = tls::ClientCertificates::required;
  mutual.add_system_roots = true;
  const Context server = make_server(mutual);
  ::unsetenv("SSL_CERT_FILE");
  {
    TlsPair pair(without, tls_world().server_context);
    EXPECT_EQ(pair.handshake().client.error(), TlsErrc::certificate);
  }
  {
    TlsPair pair(with_them, tls_world().server_context);
    pair.establish();
  }
  auto known = client_options();
  known.identities.push_back(identity_of(tls_world().client));
  TlsPair pair(make_client(known), server);
  pair.establish();
}

FIBER_TEST(TlsContext, NamesTheFileThatItFailedWith) {
  const TempDirectory dir;
  const Issued& issued = tls_world().server;
  std::error_code error;
  Identity identity;
  identity.certificate_file = (dir / "none.pem");
  expect_part(server_problem(with(identity), &error), "none.pem: No such file");
  EXPECT_EQ(error, errno_code(ENOENT));

  make_file((dir / "text.pem"), "no certificate");
  identity.certificate_file = (dir / "text.pem");
  expect_part(server_problem(with(identity), &error), "text.pem: no certificate can be read");
  EXPECT_EQ(error, TlsErrc::configuration);

  make_file((dir / "empty.pem"), "");
  identity.certificate_file = (dir / "empty.pem");
  expect_part(server_problem(with(identity)), "empty.pem: no certificate can be read");

  identity.certificate_file = "/";
  server_problem(with(identity), &error);
  EXPECT_EQ(error, errno_code(EISDIR));

  identity.certificate_file.clear();
  identity.certificate_pem = issued.certificate_pem;
  expect_part(server_problem(with(identity)), "the PEM text: no private key can be read");
  identity.key_pem = tls_world().client.key_pem;
  expect_part(server_problem(with(identity)), "not the key of the certificate");
  identity.key_pem = issued.key_pem;
  identity.certificate_pem = issued.certificate_pem + issued.certificate_pem.substr(0, 200) +
                             "\n-----END CERTIFICATE-----\n";
  expect_part(server_problem(with(identity)), "a certificate of the chain can't be read");

  ContextOptions roots;
  roots.ca_file = (dir / "none.pem");
  expect_part(client_problem(roots), "none.pem: No such file");
  roots.ca_file = (dir / "text.pem");
  expect_part(client_problem(roots), "text.pem: no root certificate can be read");
  roots.ca_file.clear();
  roots.ca_path = (dir / "text.pem");
  expect_part(client_problem(roots), "text.pem: no folder");
}

FIBER_TEST(TlsContext, RefusesWhatDoesNotGoTogether) {
  expect_part(server_problem({}), "a server needs a certificate");
  ContextOptions options = server_options();
  options.client_certificates = tls::ClientCertificates::required;
  expect_part(server_problem(options), "no root to verify them");
  options = {};
  options.min_version = tls::Version::tls1_3;
  options.max_version = tls::Version::tls1_2;
  expect_part(client_problem(options), "the greatest version is below the smallest");
  options = {};
  options.ciphers = "NOTHING";
  expect_part(client_problem(options), "no cipher in 'NOTHING'");
  options = {};
  options.cipher_suites = "NOTHING";
  expect_part(client_problem(options), "no cipher suite in 'NOTHING'");
  options = {};
  options.groups = "NOTHING";
  expect_part(client_problem(options), "no group in 'NOTHING'");
  options = {};
  options.alpn = {"h2", ""};
  expect_part(client_problem(options), "ALPN");
  options.alpn = {std::string(256, 'x')};
  expect_part(client_problem(options), "ALPN");
}

FIBER_TEST(TlsContext, PasswordsAreFetchedBeforeTheKeyIsParsed) {
  const Issued& issued = tls_world().server;
  for (const std::string& key :
       {encrypted_key(issued.key_pem, "sesame"), encrypted_key_old(issued.key_pem, "sesame")}) {
    Identity identity = identity_of(issued);
    identity.key_pem = key;
    expect_part(server_problem(with(identity)), "is encrypted, and there is no password");
    int asked = 0;
    identity.password = [&]() -> Result<std::string> {
      ++asked;
      this_fiber::yield();  // it may park
      return std::string("sesame");
    };
    std::string problem;
    const auto server = Context::server(with(identity), &problem);
    ASSERT_TRUE(server) << problem;
    EXPECT_EQ(asked, 1);
    identity.password = []() -> Result<std::string> { return std::string("wrong"); };
    expect_part(server_problem(with(identity)), "no private key can be read");
    std::error_code error;
    identity.password = []() -> Result<std::string> { return fail(Errc::timed_out); };
    expect_part(server_problem(with(identity), &error), "the password was refused");
    EXPECT_EQ(error, Errc::timed_out);
    TlsPair pair(tls_world().client_context, *server);
    pair.establish();
  }
  // A key that needs none is not asked about.
  Identity plain = identity_of(issued);
  plain.password = []() -> Result<std::string> { return fail(Errc::timed_out); };
  EXPECT_TRUE(Context::server(with(plain)));
}

FIBER_TEST(TlsContext, HasKeysOfSeveralKinds) {
  ContextOptions options = server_options();
  options.identities.push_back(
      identity_of(tls_world().authority.issue({.names = {"DNS:localhost"}, .rsa = true})));
  options.max_version = tls::Version::tls1_2;
  const auto server = Context::server(options).value();
  for (const char* kind : {"ECDSA", "RSA"}) {
    auto client = client_options();
    client.ciphers = std::string("ECDHE-") + kind + "-AES128-GCM-SHA256";
    TlsPair pair(Context::client(client).value(), server);
    pair.establish();
    EXPECT_EQ(pair.server.cipher(), client.ciphers);
  }
}

// Off a fiber it blocks; the system's roots can be read.
TEST(TlsContextThread, IsMadeOnAThread) {
  EXPECT_TRUE(Context::client());
  EXPECT_TRUE(Context::server(server_options()));
}

FIBER_TEST(TlsContext, IsSharedByThreads) {
  const Context server = tls_world().server_context;
  std::vector<JoinHandle<void>> fibers;
  for (int i = 0; i < 8; ++i)
    fibers.push_back(spawn(
        [&] {
          for (int round = 0; round < 5; ++round) {
            TlsPair pair(tls_world().client_context, server);
            pair.establish();
          }
        },
        {.hub = i % Scheduler::current()->hubs()}));
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
}

}  // namespace
}  // namespace runloom::test
