// A SOCKS5 proxy: connects clients to whatever address they name. RFC 1928, and RFC 1929 when a
// user is given.
//
//     build/release/examples/example_socks5 --port 1080 [USER:PASSWORD]
//     curl --socks5 127.0.0.1:1080 http://127.0.0.1:8000/
//
// It knows CONNECT to IPv4 and IPv6 addresses, and to names that are addresses written out; real
// names are refused as "address type not supported", so clients must resolve them themselves (curl
// --socks5, not --socks5-hostname). The whole negotiation has ten seconds, however its bytes come,
// and no byte behind it is touched: they belong to the connection.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "example.hpp"
#include "runloom/net/copy.hpp"
#include "runloom/net/network.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/join_set.hpp"

using namespace runloom;

namespace {

constexpr std::uint8_t kVersion = 5;
constexpr std::uint8_t kAnybody = 0, kByPassword = 2, kNoMethod = 0xff;
enum class Reply : std::uint8_t {
  succeeded,
  failure,
  not_allowed,
  network_unreachable,
  host_unreachable,
  refused,
  expired,
  command_not_supported,
  address_not_supported,
};

class Negotiation {
 public:
  Negotiation(net::TcpStream& client, const std::string& login)
      : client_(client), login_(login), deadline_(Deadline::after(std::chrono::seconds(10))) {}

  // The connection that the client asks for. What can be answered was answered when it fails.
  Result<net::TcpStream> run() {
    if (auto ok = choose_method(); !ok) return Unexpected{ok.error()};
    RUNLOOM_TRY(const net::Address target, read_request());
    auto server = net::TcpStream::connect(target, {}, deadline_);
    if (!server) return refuse(reply_of(server.error()), server.error());
    RUNLOOM_TRY(const net::Address local, server->local_address());
    if (auto ok = answer(Reply::succeeded, local); !ok) return Unexpected{ok.error()};
    return server;
  }

 private:
  Result<void> choose_method() {
    RUNLOOM_TRY(const auto head, read<2>());
    if (head[0] != kVersion) return fail_errno(EPROTO);
    RUNLOOM_TRY(const std::string methods, read_text(head[1]));
    const std::uint8_t wanted = login_.empty() ? kAnybody : kByPassword;
    const bool offered = methods.find(static_cast<char>(wanted)) != std::string::npos;
    if (auto ok = write({kVersion, offered ? wanted : kNoMethod}); !ok) return ok;
    if (!offered) return fail_errno(EACCES);
    return login_.empty() ? Result<void>() : check_login();
  }

  Result<void> check_login() {
    RUNLOOM_TRY(const auto head, read<2>());
    if (head[0] != 1) return fail_errno(EPROTO);
    RUNLOOM_TRY(const std::string user, read_text(head[1]));
    RUNLOOM_TRY(const auto length, read<1>());
    RUNLOOM_TRY(const std::string password, read_text(length[0]));
    const bool right = same(user + ':' + password, login_);
    if (auto ok = write({1, static_cast<std::uint8_t>(right ? 0 : 1)}); !ok) return ok;
    return right ? Result<void>() : fail_errno(EACCES);
  }

  Result<net::Address> read_request() {
    RUNLOOM_TRY(const auto head, read<4>());  // version, command, nothing, type of address
    if (head[0] != kVersion) return fail_errno(EPROTO);
    net::Address target;
    if (head[3] == 1) {
      RUNLOOM_TRY(const auto bytes, read<4>());
      in_addr ip;
      std::memcpy(&ip, bytes.data(), sizeof ip);
      target = net::Address::from_ipv4(ip, 0);
    } else if (head[3] == 4) {
      RUNLOOM_TRY(const auto bytes, read<16>());
      in6_addr ip;
      std::memcpy(&ip, bytes.data(), sizeof ip);
      target = net::Address::from_ipv6(ip, 0);
    } else if (head[3] == 3) {
      RUNLOOM_TRY(const auto length, read<1>());
      RUNLOOM_TRY(const std::string name, read_text(length[0]));
      if (const auto ip = net::Address::from_ip(name, 0)) target = *ip;
    } else {
      return refuse(Reply::address_not_supported, net::make_error_code(net::AddressErrc::bad_ip));
    }
    RUNLOOM_TRY(const auto port, read<2>());
    if (head[1] != 1) return refuse(Reply::command_not_supported, errno_code(EOPNOTSUPP));
    if (!target.is_ip())
      return refuse(Reply::address_not_supported, net::make_error_code(net::AddressErrc::bad_ip));
    return target.with_port(static_cast<std::uint16_t>(port[0] << 8 | port[1]));
  }

  Unexpected refuse(Reply why, std::error_code error) {
    static_cast<void>(answer(why, net::Address::any_ipv4()));
    return fail(error);
  }

  Result<void> answer(Reply reply, const net::Address& bound) {
    const net::IpBytes ip(bound);
    std::string out{static_cast<char>(kVersion), static_cast<char>(reply), '\0',
                    static_cast<char>(ip.size == 16 ? 4 : 1)};
    out.append(reinterpret_cast<const char*>(ip.bytes.data()), ip.size == 16 ? 16 : 4);
    out.push_back(static_cast<char>(bound.port() >> 8));
    out.push_back(static_cast<char>(bound.port()));
    return client_.write_all(net::bytes(out), deadline_);
  }

  static Reply reply_of(std::error_code error) {
    if (error == std::errc::connection_refused) return Reply::refused;
    if (error == std::errc::network_unreachable) return Reply::network_unreachable;
    if (error == std::errc::host_unreachable) return Reply::host_unreachable;
    if (error == std::errc::timed_out) return Reply::expired;
    return Reply::failure;
  }

  // Takes the same time for every wrong login of the right length.
  static bool same(const std::string& a, const std::string& b) {
    unsigned char difference = a.size() == b.size() ? 0 : 1;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
      difference |= static_cast<unsigned char>(a[i] ^ b[i]);
    return difference == 0;
  }

  template <std::size_t N>
  Result<std::array<std::uint8_t, N>> read() {
    std::array<std::uint8_t, N> out{};
    RUNLOOM_TRY(const std::size_t count,
                client_.read_full(std::as_writable_bytes(std::span(out)), deadline_));
    if (count != N) return fail_errno(EPROTO);
    return out;
  }
  Result<std::string> read_text(std::size_t size) {
    std::string out(size, '\0');
    RUNLOOM_TRY(const std::size_t count,
                client_.read_full(std::as_writable_bytes(std::span(out)), deadline_));
    if (count != size) return fail_errno(EPROTO);
    return out;
  }
  Result<void> write(std::array<std::uint8_t, 2> data) {
    return client_.write_all(std::as_bytes(std::span(data)), deadline_);
  }

  net::TcpStream& client_;
  const std::string& login_;
  const Deadline deadline_;
};

// One direction, until it ends or fails.
Result<void> pump(net::TcpStream& from, net::TcpStream& to) {
  if (auto copied = net::copy(from, to); !copied) return Unexpected{copied.error()};
  return to.shutdown_write();
}

void serve(net::TcpStream client, const std::string& login) {
  auto server = Negotiation(client, login).run();
  if (!server) {
    // It may still be sending: a plain close would take the answer away from it (T46).
    net::lingering_close(client, {Deadline::after(std::chrono::seconds(1))});
    return;
  }
  JoinSet<> directions;
  if (!directions.spawn([&] { return pump(client, *server); })) return;
  if (!directions.spawn([&] { return pump(*server, client); })) return;
  static_cast<void>(directions.wait());
}

}  // namespace

int main(int argc, char** argv) {
  const char* usage = "example_socks5 [--port N] [--hubs N] [USER:PASSWORD]";
  const auto arguments = example::parse(argc, argv, usage);
  const std::string login = arguments.rest.empty() ? "" : arguments.rest[0];
  if (arguments.rest.size() > 1 || (!login.empty() && login.find(':') == std::string::npos)) {
    std::fprintf(stderr, "usage: %s\n", usage);
    return 2;
  }
  net::Server server([&](net::TcpStream client) { serve(std::move(client), login); },
                     {.max_connections_per_peer = 1000});
  return example::run(server, arguments);
}
