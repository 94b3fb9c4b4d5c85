// UdpEndpoint's calls that move many datagrams: recvmmsg(2) and sendmmsg(2).
//
// Sends are cheaper still in segments: the kernel takes a run of datagrams as one large one through
// its whole stack, and cuts it up at the end (UDP_SEGMENT). A run is what goes to one peer, from
// one address, in one size, but for the last one, which may be shorter. Their memory is gathered
// and need not be contiguous. Where a run is refused (it has segments larger than the path takes,
// or the interface can't) the rest of the call does without, so that each datagram gets the
// kernel's own answer.
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "runloom/net/udp_endpoint.hpp"
#include "udp_control.hpp"

namespace runloom::net {
namespace {

constexpr std::size_t kMessages = 64;      // of one system call
constexpr std::size_t kFew = 8;            // that a receive is always ready for
constexpr std::size_t kParts = 256;        // pieces of memory that they have
constexpr std::size_t kMostSegments = 64;  // of one message; newer kernels take 128
constexpr std::size_t kMostBytes = kMostUdpIpv4;

// Makes ready for as many datagrams as came lately, because most calls find few, and for the rest
// only when those have all come.
class Receives final : public Attempt {
 public:
  // `hears_errors`: recvmmsg may have stopped at one, which is told by the next call only.
  Receives(std::span<Datagram> datagrams, bool tells_more, bool hears_errors,
           std::size_t lately) noexcept
      : Attempt(hears_errors ? 0 : std::min(datagrams.size(), kMessages)),
        datagrams_(datagrams.first(std::min(datagrams.size(), kMessages))),
        tells_more_(tells_more),
        may_add_(!hears_errors) {
    prepare(hears_errors ? datagrams_.size() : std::min(datagrams_.size(), lately));
  }

  ssize_t make(int fd) noexcept override {
    const std::size_t tried = prepared_;
    const int first = take(fd, 0);
    if (first < 0 || static_cast<std::size_t>(first) < tried || tried == datagrams_.size() ||
        !may_add_)
      return first;
    prepare(datagrams_.size());
    const int more = take(fd, tried);
    return more > 0 ? first + more : first;
  }

  void report(std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      Datagram& datagram = datagrams_[i];
      datagram.full_size = messages_[i].msg_len;
      datagram.size = std::min(datagram.full_size, datagram.buffer.size());
      datagram.peer.filled(messages_[i].msg_hdr.msg_namelen);
      forget_control(datagram);
      if (tells_more_) read_control(messages_[i].msg_hdr, datagram);
    }
  }

 private:
  int take(int fd, std::size_t from) noexcept {
    return ::recvmmsg(fd, &messages_[from], static_cast<unsigned>(prepared_ - from), MSG_TRUNC,
                      nullptr);
  }

  void prepare(std::size_t count) noexcept {
    for (; prepared_ < count; ++prepared_) {
      Datagram& datagram = datagrams_[prepared_];
      parts_[prepared_] = {datagram.buffer.data(), datagram.buffer.size()};
      msghdr& message = messages_[prepared_].msg_hdr;
      message = {};
      message.msg_name = datagram.peer.fill();
      message.msg_namelen = Address::kMostSize;
      message.msg_iov = &parts_[prepared_];
      message.msg_iovlen = 1;
      if (tells_more_) expect_control(message, rooms_[prepared_]);
    }
  }

  const std::span<Datagram> datagrams_;
  const bool tells_more_;
  const bool may_add_;
  std::size_t prepared_ = 0;
  std::array<mmsghdr, kMessages> messages_;
  std::array<iovec, kMessages> parts_;
  std::array<ControlRoom, kMessages> rooms_;
};

// What a send takes from each kind of datagram.
struct Piece {
  std::span<const std::byte> data;
  const Address& peer;
  const Address& local;
  unsigned interface;
};

bool go_together(const Piece& a, const Piece& b) noexcept {
  return a.peer == b.peer && a.interface == b.interface && a.local == b.local;
}

// One sendmmsg's worth of the pieces.
class Sends final : public Attempt {
 public:
  Sends(int family, bool segments) noexcept : family_(family), segments_(segments) {}

  // Takes pieces from `next` on, as many as there is room for.
  template <class PieceAt>
  void gather(std::size_t next, std::size_t end, const PieceAt& piece_at) noexcept {
    used_ = parts_used_ = 0;
    while (next < end && used_ < kMessages && parts_used_ < kParts)
      next += add_run(next, end, piece_at);
  }

  ssize_t make(int fd) noexcept override {
    return ::sendmmsg(fd, messages_.data(), static_cast<unsigned>(used_), MSG_NOSIGNAL);
  }

  // How many pieces the first `messages` messages had.
  std::size_t pieces_of(std::size_t messages) const noexcept {
    std::size_t pieces = 0;
    for (std::size_t i = 0; i < messages; ++i)
      pieces += runs_[i];
    return pieces;
  }
  bool first_is_run() const noexcept { return runs_[0] > 1; }

 private:
  template <class PieceAt>
  std::size_t add_run(std::size_t first, std::size_t end, const PieceAt& piece_at) noexcept {
    const Piece piece = piece_at(first);
    const std::size_t size = piece.data.size();
    const std::size_t first_part = parts_used_;
    add_part(piece.data);
    std::size_t run = 1;
    if (segments_ && size != 0) {
      std::size_t total = size;
      for (; run < kMostSegments && first + run < end && parts_used_ < kParts; ++run) {
        const Piece more = piece_at(first + run);
        const std::size_t more_size = more.data.size();
        if (more_size == 0 || more_size > size || total + more_size > kMostBytes ||
            !go_together(piece, more))
          break;
        if (!extend_part(more.data)) add_part(more.data);
        total += more_size;
        if (more_size < size) {
          ++run;
          break;
        }
      }
    }
    msghdr& message = messages_[used_].msg_hdr;
    message = {};
    if (piece.peer.size() != 0) {
      message.msg_name = const_cast<sockaddr*>(piece.peer.data());
      message.msg_namelen = piece.peer.size();
    }
    message.msg_iov = &parts_[first_part];
    message.msg_iovlen = parts_used_ - first_part;
    write_control(message, rooms_[used_], family_, piece.local, piece.interface,
                  run > 1 ? size : 0);
    runs_[used_++] = static_cast<std::uint8_t>(run);
    return run;
  }

  void add_part(std::span<const std::byte> data) noexcept {
    parts_[parts_used_++] = {const_cast<std::byte*>(data.data()), data.size()};
  }
  // Where it follows the last part in memory.
  bool extend_part(std::span<const std::byte> data) noexcept {
    iovec& last = parts_[parts_used_ - 1];
    if (static_cast<const std::byte*>(last.iov_base) + last.iov_len != data.data()) return false;
    last.iov_len += data.size();
    return true;
  }

  const int family_;
  const bool segments_;
  std::size_t used_ = 0;
  std::size_t parts_used_ = 0;
  std::array<mmsghdr, kMessages> messages_;
  std::array<iovec, kParts> parts_;
  std::array<ControlRoom, kMessages> rooms_;
  std::array<std::uint8_t, kMessages> runs_;
};

// What the kernel says to a run that it would take one by one, or refuse for a better reason.
bool refuses_segments(std::error_code error) noexcept {
  if (error.category() != std::system_category()) return false;
  switch (error.value()) {
    case EINVAL:      // a segment is larger than the path takes
    case EMSGSIZE:    // the same, or more bytes than a datagram of this family can have
    case EIO:         // the interface can't compute the checksums
    case EOPNOTSUPP:  // it was a feature of the interface, or of the socket's
    case ENOPROTOOPT:
      return true;
    default:
      return false;
  }
}

// Sends the pieces in order; how many were sent. The error of the first one.
template <class PieceAt>
Result<std::size_t> send_pieces(const Fd& fd, int family, std::size_t count, Deadline deadline,
                                const PieceAt& piece_at) {
  bool segments = udp_features().segmentation;
  std::size_t sent = 0;
  while (sent < count) {
    Sends batch(family, segments);
    batch.gather(sent, count, piece_at);
    const auto messages = fd.attempt(kWrite, batch, 0, deadline);
    if (messages) {
      sent += batch.pieces_of(*messages);
      // An attempt is made even past the deadline; from the second on that could go on for ever.
      if (sent < count && deadline.passed()) break;
    } else if (batch.first_is_run() && refuses_segments(messages.error())) {
      segments = false;
    } else if (sent == 0) {
      return Unexpected{messages.error()};
    } else {
      break;
    }
  }
  return sent;
}

}  // namespace

Result<std::size_t> UdpEndpoint::recv_many(std::span<Datagram> datagrams, Deadline deadline) const {
  if (datagrams.empty()) return std::size_t{0};
  const std::atomic_ref lately(lately_);
  const std::size_t expected = lately.load(std::memory_order_relaxed);
  Receives batch(datagrams, tells_more_, hears_errors(), expected);
  RUNLOOM_TRY(const std::size_t count, fd_.attempt(kRead, batch, 0, deadline));
  batch.report(count);
  const std::size_t next = std::clamp(2 * count, kFew, kMessages);
  if (next != expected) lately.store(static_cast<std::uint8_t>(next), std::memory_order_relaxed);
  return count;
}

Result<std::size_t> UdpEndpoint::send_many(std::span<const OutDatagram> datagrams,
                                           Deadline deadline) const {
  // Those before one whose address can't be right are sent; then it is the first.
  const auto wrong = std::find_if(datagrams.begin(), datagrams.end(), [&](const auto& each) {
    return each.local.family() != AF_UNSPEC && each.local.family() != family_;
  });
  if (wrong == datagrams.begin() && wrong != datagrams.end()) return fail_errno(EAFNOSUPPORT);
  return send_pieces(fd_, family_, static_cast<std::size_t>(wrong - datagrams.begin()), deadline,
                     [&](std::size_t i) {
                       const OutDatagram& each = datagrams[i];
                       return Piece{each.data, each.peer, each.local, each.interface};
                     });
}

// The interface is left to the kernel's routes: the answer need not leave by where the question
// came in. A link-local peer has it in its scope.
Result<std::size_t> UdpEndpoint::send_many(std::span<const Datagram> datagrams,
                                           Deadline deadline) const {
  std::size_t sent = 0;
  const auto one = [&](std::size_t i) {
    const Datagram& each = datagrams[i];
    return Piece{each.data(), each.peer, each.local, 0};
  };
  while (sent < datagrams.size()) {
    // What came coalesced goes out in the same segments.
    const auto rest = datagrams.subspan(sent);
    const auto joined = std::find_if(rest.begin(), rest.end(),
                                     [](const Datagram& each) { return each.segments() > 1; });
    const auto single = static_cast<std::size_t>(joined - rest.begin());
    if (single > 0) {
      const auto some =
          send_pieces(fd_, family_, single, deadline, [&](std::size_t i) { return one(sent + i); });
      if (!some) return sent > 0 ? Result<std::size_t>(sent) : some;
      sent += *some;
      if (*some < single) return sent;
      continue;
    }
    const Datagram& run = rest.front();
    const auto pieces = send_pieces(fd_, family_, run.segments(), deadline, [&](std::size_t i) {
      return Piece{run.segment(i), run.peer, run.local, 0};
    });
    if (!pieces) return sent > 0 ? Result<std::size_t>(sent) : pieces;
    if (*pieces < run.segments()) return sent;
    ++sent;
  }
  return sent;
}

Result<std::size_t> UdpEndpoint::send_segments(std::span<const std::byte> data,
                                               std::size_t segment_size, const Address& peer,
                                               Deadline deadline) const {
  if (segment_size == 0) return fail_errno(EINVAL);
  const Address nowhere;
  const std::size_t segments = (data.size() + segment_size - 1) / segment_size;
  RUNLOOM_TRY(const std::size_t sent,
              send_pieces(fd_, family_, segments, deadline, [&](std::size_t i) {
                const auto rest = data.subspan(i * segment_size);
                return Piece{rest.first(std::min(rest.size(), segment_size)), peer, nowhere, 0};
              }));
  return std::min(sent * segment_size, data.size());
}

}  // namespace runloom::net
