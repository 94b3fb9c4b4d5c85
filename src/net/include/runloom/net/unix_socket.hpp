// What all Unix sockets share: messages with descriptors, the peer's credentials, errors, and the
// three calls that are not as simple there as they look. See unix(7).
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <system_error>
#include <vector>

#include "runloom/net/address.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/net/owned_fd.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

// Refused before the kernel was asked. All compare equal to std::errc::invalid_argument.
enum class UnixErrc {
  too_many_fds = 1,  // a message carries at most kMostFds descriptors
  no_byte,           // on a stream, descriptors travel with at least one byte
};
const std::error_category& unix_category() noexcept;
inline std::error_code make_error_code(UnixErrc e) noexcept {
  return {static_cast<int>(e), unix_category()};
}

// Descriptors that fit into one message (SCM_MAX_FD).
inline constexpr std::size_t kMostFds = 253;

// Who is at the other end, as the kernel noted it when the connection was made.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};
// Of a connected stream, or of one half of a pair. Doesn't park. Fails with closed, ENOTCONN.
Result<PeerCredentials> peer_credentials(const Fd& socket);

// What one receive has brought.
struct UnixMessage {
  // Bytes written into the caller's buffer. Of a stream 0 is its end, of a datagram it is none.
  std::size_t bytes = 0;
  // Of a datagram: how long it was, before what didn't fit into the buffer was dropped.
  std::size_t full_size = 0;
  bool truncated() const noexcept { return full_size > bytes; }
  // The sender of a datagram; unnamed (an empty unix_name()) when it was not bound.
  Address from{};
  // In the order in which they were sent, all close-on-exec.
  std::vector<OwnedFd> fds{};
  // More descriptors were sent than are in `fds`. Those that the caller did not expect, or for
  // which the process had no room, are closed.
  bool fds_lost = false;
};

// One recvmsg(2) that takes up to `most_fds` descriptors (kMostFds at most). Parks. For authors of
// net types.
Result<UnixMessage> receive_message(const Fd& socket, std::span<std::byte> buffer,
                                    std::size_t most_fds, bool datagram, Deadline deadline);
// One sendmsg(2) with descriptors, which stay the caller's. To `to`, where it is given. Parks.
Result<std::size_t> send_message(const Fd& socket, std::span<const std::byte> data,
                                 std::span<const int> fds, const Address* to, Deadline deadline);

// connect(2). The kernel answers EAGAIN when the listener's queue is full, and tells nobody when
// there is room again: so this asks again, every 20 ms at the latest. Parks; a cancel point.
Result<void> connect_unix(const Fd& socket, const sockaddr* peer, socklen_t size,
                          Deadline deadline = {});
// accept(2): a non-blocking, close-on-exec descriptor. The kernel keeps saying EAGAIN on a
// non-blocking listener that was shut down; this fails with EINVAL, as a blocking accept does.
// `peer` may be null. Parks; a cancel point.
Result<int> accept_unix(const Fd& listener, sockaddr* peer, socklen_t* size,
                        Deadline deadline = {});
// sendmsg(2) to a named peer, message.msg_name, on a datagram socket. When the receiver's queue is
// full the kernel answers EAGAIN and calls the sender's socket writable all the same; this waits
// for the receiver, and spins never. Parks; a cancel point. MSG_DONTWAIT in `flags`: EAGAIN.
Result<std::size_t> sendmsg_to(const Fd& socket, const msghdr& message, int flags,
                               Deadline deadline = {});

}  // namespace runloom::net

template <>
struct std::is_error_code_enum<runloom::net::UnixErrc> : std::true_type {};
