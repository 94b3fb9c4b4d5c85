// The kernel keeps the sockets of a port in an array, in the order in which they came to listen,
// and closes a gap by the last one. A program that is attached to the port chooses an index; one
// that is not in the array means: by hash, as without a program.
//
// Ours are the first `own`; the successor's `other` stand behind them. The index `other` is one of
// his as long as other >= own. While ours are closed the array shrinks from own + other to `other`
// entries: until the last one is closed the index is in it, and is his, because what moves into
// the gaps is his, too; from then on it is out of the array, and the kernel spreads over all of
// his. So nothing is left to be taken back at the one moment when there is nobody to do it.
#include "reuse_port_steering.hpp"

#include <linux/filter.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "runloom/net/network.hpp"

namespace runloom::net {
namespace {

// How /proc/net/tcp and tcp6 write the address: words of 32 bits in host order, then the port.
std::array<char, 48> written(const Address& bound) noexcept {
  std::array<char, 48> out{};
  if (bound.is_ipv4()) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, bound.data(), sizeof ipv4);
    std::snprintf(out.data(), out.size(), "%08X:%04X", ipv4.sin_addr.s_addr, bound.port());
  } else {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, bound.data(), sizeof ipv6);
    std::array<std::uint32_t, 4> words;
    std::memcpy(words.data(), &ipv6.sin6_addr, sizeof words);
    std::snprintf(out.data(), out.size(), "%08X%08X%08X%08X:%04X", words[0], words[1], words[2],
                  words[3], bound.port());
  }
  return out;
}

// Sockets that listen at the address, of any process. The file begins with the listening ones.
std::size_t count_listening(const Address& bound) noexcept {
  const char* const path = bound.is_ipv4() ? "/proc/net/tcp" : "/proc/net/tcp6";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "re"), &std::fclose);
  if (!file) return 0;
  const auto wanted = written(bound);
  std::array<char, 256> line;
  std::size_t count = 0;
  while (std::fgets(line.data(), line.size(), file.get())) {
    std::array<char, 48> local{}, remote{};
    unsigned state = 0;
    if (std::sscanf(line.data(), " %*d: %47s %47s %X", local.data(), remote.data(), &state) != 3)
      continue;
    constexpr unsigned kListen = 0x0a;
    if (state != kListen) break;
    if (std::strcmp(local.data(), wanted.data()) == 0) ++count;
  }
  return count;
}

}  // namespace

void steer_away(const Fd& listener, const Address& bound, std::size_t own) noexcept {
  const std::size_t all = count_listening(bound);
  if (all < 2 * own) return;
  const auto index = static_cast<std::uint32_t>(all - own);
  std::array<sock_filter, 1> code{{{BPF_RET | BPF_K, 0, 0, index}}};
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  const Fd::Use use(listener);
  if (!use) return;
  ::setsockopt(use.number(), SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program);
}

void stop_steering(const Fd& listener) noexcept {
  const Fd::Use use(listener);
  const int none = 0;
  // ENOENT: nobody has.
  if (use) ::setsockopt(use.number(), SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, &none, sizeof none);
}

}  // namespace runloom::net
