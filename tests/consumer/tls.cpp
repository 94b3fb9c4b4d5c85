// Uses the TLS layer as an outside project does: a context, and what a bad one fails with.
#include <cstdio>
#include <runloom/tls/context.hpp>
#include <runloom/tls/stream.hpp>
#include <string>

int main() {
  namespace tls = runloom::tls;
  std::string problem;
  if (auto context = tls::Context::client({}, &problem); !context) {
    std::fprintf(stderr, "failed: %s\n", problem.c_str());
    return 1;
  }
  tls::ContextOptions bad;
  bad.ciphers = "NO-SUCH-CIPHER";
  const auto refused = tls::Context::client(bad, &problem);
  return refused.error() == tls::TlsErrc::configuration && !problem.empty() ? 0 : 1;
}
