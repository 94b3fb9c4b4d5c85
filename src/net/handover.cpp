// What is said, each a byte:
//
//   predecessor   'H' once, with its version behind it; 'L' with a listener, for each; '.' at last
//   successor     'R' when it accepts
//   predecessor   'K' when it has begun to stop
//
// The end of the connection before 'R' is the end of the attempt, and nothing has happened. Both
// processes have the same sockets in the meantime, and only the first one accepts. From 'R' on the
// clients in the backlogs are the successor's, who is accepting already: so there is no moment at
// which nobody would take them, and the first process closes sockets that go on to exist.
#include "runloom/net/handover.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::net {
namespace {

constexpr std::string_view kHello = "H1";
constexpr std::size_t kMostListeners = 4096;

Result<void> expect(UnixStream& stream, std::string_view text, Deadline deadline) {
  std::array<std::byte, 8> buffer;
  const auto wanted = std::span(buffer).first(text.size());
  RUNLOOM_TRY(const std::size_t count, stream.read_full(wanted, deadline));
  if (count == 0) return fail(Errc::closed);
  const auto said = bytes(text);
  if (count != text.size() || !std::equal(said.begin(), said.end(), wanted.begin()))
    return fail_errno(EPROTO);
  return {};
}

// True: it is ready.
Result<void> serve_successor(Server& server, UnixStream& successor,
                             const HandoverOptions& options) {
  const Deadline deadline = Deadline::after(options.patience);
  RUNLOOM_TRY(const PeerCredentials who, successor.peer_credentials());
  if (who.uid != ::geteuid() && who.uid != 0) return fail_errno(EPERM);
  auto said = successor.write_all(bytes(kHello), deadline);
  for (const ListenFd& each : server.listeners()) {
    if (!said) return said;
    if (options.reuse_port && each.family != AF_UNIX) continue;
    const std::array<int, 1> fd{each.fd.number()};
    const auto sent = successor.send_fds(bytes("L"), fd, deadline);
    if (!sent) return Unexpected{sent.error()};
  }
  if (!said || !(said = successor.write_all(bytes("."), deadline))) return said;
  return expect(successor, "R", deadline);
}

}  // namespace

Result<void> await_successor(Server& server, const Address& at, std::chrono::milliseconds drain,
                             const HandoverOptions& options) {
  RUNLOOM_TRY(UnixListener listener,
              UnixListener::listen(at, {.backlog = 8, .bind = {.mode = options.mode}}));
  return await_successor(server, listener, drain, options);
}

Result<void> await_successor(Server& server, UnixListener& listener,
                             std::chrono::milliseconds drain, const HandoverOptions& options) {
  for (;;) {
    RUNLOOM_TRY(UnixStream successor, listener.accept_retrying());
    if (!serve_successor(server, successor, options)) {
      if (auto ok = this_fiber::check_cancelled(); !ok) return ok;
      continue;
    }
    const Shield shield;  // what was begun is done
    listener.close();
    server.begin_handover(Deadline::after(drain), options.reuse_port
                                                      ? Server::Successor::same_ports
                                                      : Server::Successor::same_sockets);
    static_cast<void>(successor.write_all(bytes("K"), Deadline::after(std::chrono::seconds(5))));
    return {};
  }
}

Result<Predecessor> Predecessor::ask(const Address& at, Deadline deadline) {
  Predecessor out;
  RUNLOOM_TRY(out.connection_, UnixStream::connect(at, deadline));
  RUNLOOM_TRY(const PeerCredentials who, out.connection_.peer_credentials());
  out.pid_ = who.pid;
  if (auto hello = expect(out.connection_, kHello, deadline); !hello) {
    const bool refused = hello.error() == Errc::closed;  // it has looked who we are
    return refused ? fail_errno(EPERM) : Unexpected{hello.error()};
  }
  for (;;) {
    std::array<std::byte, 1> byte;
    RUNLOOM_TRY(UnixMessage message, out.connection_.recv_fds(byte, 1, deadline));
    if (message.bytes == 0) return fail_errno(EPROTO);
    if (byte[0] == std::byte{'.'}) return out;
    if (byte[0] != std::byte{'L'} || message.fds_lost || message.fds.size() != 1 ||
        out.listeners_.size() == kMostListeners)
      return fail_errno(message.fds_lost ? EMFILE : EPROTO);
    ListenFd each{.fd = std::move(message.fds[0]), .type = SOCK_STREAM, .listening = true};
    Address bound;
    socklen_t size = Address::kMostSize;
    if (::getsockname(each.fd.number(), bound.fill(), &size) != 0) return fail(last_errno());
    bound.filled(size);
    each.family = bound.family();
    each.name = bound.to_string();
    out.listeners_.push_back(std::move(each));
  }
}

Result<void> Predecessor::give_to(Server& server) {
  for (ListenFd& each : listeners_) {
    RUNLOOM_TRY(const Address at, server.listen_on(std::move(each.fd)));
    static_cast<void>(at);
  }
  return {};
}

Result<void> Predecessor::ready(Server& server, Deadline deadline) {
  auto done = connection_.write_all(bytes("R"), deadline);
  if (done) done = expect(connection_, "K", deadline);
  if (done) server.claim_files();
  connection_.close();
  return done;
}

}  // namespace runloom::net
