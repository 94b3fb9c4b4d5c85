// The way of messages between c-ares and the kernel: stand-ins on one side, what servers see and
// say on the other. Called inside of c-ares's callbacks, so nothing here calls c-ares.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "channel.hpp"

namespace runloom::dns {
namespace {

constexpr std::size_t kReadSize = 16 * 1024;  // of a stream

bool would_block(int error) noexcept {
  return error == EAGAIN || error == EWOULDBLOCK;
}

// send(2) and recvfrom(2) without EINTR.
ssize_t send_bytes(int fd, Bytes bytes) noexcept {
  for (;;) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0 || errno != EINTR) return sent;
  }
}

ssize_t receive_bytes(int fd, std::span<std::byte> room, sockaddr* from,
                      socklen_t* from_size) noexcept {
  for (;;) {
    const ssize_t got = ::recvfrom(fd, room.data(), room.size(), 0, from, from_size);
    if (got >= 0 || errno != EINTR) return got;
  }
}

}  // namespace

// ---------------------------------------------------------------- out

Bytes Channel::substitute(Bytes stand_in) {
  const auto read = read_stand_in(stand_in);
  const auto it = read ? in_flight_.find(read->number) : in_flight_.end();
  if (it == in_flight_.end()) return {};
  Exchange& exchange = *it->second;
  // The same question with another id is one that c-ares would like to send to a server that failed
  // (a default since 1.32): it is taken for sent.
  if (exchange.sent && exchange.id != read->id) return {};
  if (exchange.id != read->id) give_id(exchange, read->id);
  exchange.sent = true;
  // c-ares was not content with what came before.
  exchange.answer.clear();
  return real_question(exchange);
}

Bytes Channel::real_question(const Exchange& exchange) {
  const Bytes question =
      exchange.without_edns ? without_records(exchange.question) : Bytes(exchange.question);
  question_.assign(question.begin(), question.end());
  set_id(question_, exchange.id);
  if (exchange.without_edns) question_[10] = question_[11] = std::byte{0};
  return question_;
}

ssize_t Channel::transmit(int fd, std::span<const iovec> stand_ins) {
  const auto it = open_.find(fd);
  if (it == open_.end()) {
    errno = EBADF;
    return -1;
  }
  OpenSocket& socket = it->second;
  std::vector<std::byte> given;
  for (const iovec& part : stand_ins) {
    const auto* bytes = static_cast<const std::byte*>(part.iov_base);
    given.insert(given.end(), bytes, bytes + part.iov_len);
  }
  const auto taken = static_cast<ssize_t>(given.size());
  if (socket.asked_at == 0) socket.asked_at = monotonic_ns();
  if (!socket.tcp) {
    const Bytes question = substitute(given);
    return question.empty() || send_bytes(fd, question) >= 0 ? taken : -1;
  }
  // All or nothing is taken, so what c-ares gives is whole messages. Before the connection stands
  // the kernel takes nothing.
  if (!socket.unsent.empty()) {
    errno = EAGAIN;
    return -1;
  }
  MessageStream messages;
  messages.append(given);
  out_.clear();
  while (const auto message = messages.next())
    if (const Bytes question = substitute(*message); !question.empty()) put_framed(out_, question);
  const ssize_t sent = out_.empty() ? 0 : send_bytes(fd, out_);
  if (sent < 0) return -1;
  if (static_cast<std::size_t>(sent) < out_.size()) {
    socket.unsent.assign(out_.begin() + sent, out_.end());
    interest(fd);
  }
  return taken;
}

// A failure shows when something is read.
void Channel::send_unsent(int fd, OpenSocket& socket) {
  if (socket.unsent.empty()) return;
  const ssize_t sent = send_bytes(fd, socket.unsent);
  if (sent < 0 && would_block(errno)) return;
  socket.unsent.erase(socket.unsent.begin(),
                      sent < 0 ? socket.unsent.end() : socket.unsent.begin() + sent);
  interest(fd);
}

// ---------------------------------------------------------------- in

void Channel::note_failure(const OpenSocket& socket) {
  const int failure = errno;
  if (!would_block(failure)) servers_.silent(socket.peer, monotonic_ns());
  errno = failure;
}

// What can't be sent is lost, as any datagram may be.
void Channel::ask_again(int fd, OpenSocket& socket, Exchange& exchange) {
  const Bytes question = real_question(exchange);
  if (!socket.tcp) {
    (void)send_bytes(fd, question);
    return;
  }
  put_framed(socket.unsent, question);
  send_unsent(fd, socket);
}

Exchange* Channel::digest(int fd, OpenSocket& socket, Bytes message) {
  const auto it = message.size() < kHeaderSize ? by_id_.end() : by_id_.find(message_id(message));
  if (it == by_id_.end() || !answers(it->second->question, message)) {
    counters_.dropped.add();
    return nullptr;
  }
  Exchange& exchange = *it->second;
  Reader reader(message);
  const Header header = read_header(reader);
  switch (header.rcode()) {
    case 1:
      if (!exchange.may_drop_edns || exchange.without_edns ||
          without_records(exchange.question).size() == exchange.question.size())
        break;
      // A server from before EDNS. c-ares waits on, as if nothing had come.
      exchange.without_edns = true;
      ask_again(fd, socket, exchange);
      return nullptr;
    case 2:
    case 4:
    case 5:
      exchange.refusal.assign(message.begin(), message.end());
      return &exchange;
    default:
      break;
  }
  // Over UDP c-ares goes to TCP then. The first one counts: it is what c-ares ends the question
  // with.
  if ((socket.tcp || !header.truncated()) && exchange.answer.empty())
    exchange.answer.assign(message.begin(), message.end());
  return &exchange;
}

// Its own descriptor's queue is bounded by the kernel; a flood is always there.
ssize_t Channel::receive_datagram(int fd, std::span<std::byte> stand_in, sockaddr* from,
                                  socklen_t* from_size) {
  OpenSocket& socket = open_.find(fd)->second;
  in_.resize(kMostMessage);
  const socklen_t room = from_size ? *from_size : 0;
  for (;;) {
    if (budget_-- <= 0) {
      errno = EAGAIN;
      return -1;
    }
    if (from_size) *from_size = room;
    const ssize_t got = receive_bytes(fd, in_, from, from_size);
    if (got < 0) {
      note_failure(socket);
      return -1;
    }
    // An empty one is a datagram, too, and no end.
    const Exchange* const exchange =
        digest(fd, socket, Bytes(in_).first(static_cast<std::size_t>(got)));
    if (!exchange) continue;
    socket.asked_at = 0;
    servers_.answered(socket.peer);
    out_.clear();
    put_stand_in_answer(out_, in_, exchange->number);
    const std::size_t size = std::min(out_.size(), stand_in.size());
    std::copy_n(out_.begin(), size, stand_in.begin());
    return static_cast<ssize_t>(size);
  }
}

ssize_t Channel::receive_stream(int fd, std::span<std::byte> stand_in) {
  OpenSocket& socket = open_.find(fd)->second;
  while (socket.digested.empty()) {
    if (budget_-- <= 0) {
      errno = EAGAIN;
      return -1;
    }
    in_.resize(kReadSize);
    const ssize_t got = receive_bytes(fd, in_, nullptr, nullptr);
    if (got < 0) note_failure(socket);
    if (got <= 0) return got;
    socket.asked_at = 0;
    servers_.answered(socket.peer);
    socket.received.append(Bytes(in_).first(static_cast<std::size_t>(got)));
    while (const auto message = socket.received.next()) {
      const Exchange* const exchange = digest(fd, socket, *message);
      if (!exchange) continue;
      out_.clear();
      put_stand_in_answer(out_, *message, exchange->number);
      put_framed(socket.digested, out_);
    }
  }
  const std::size_t size = std::min(socket.digested.size(), stand_in.size());
  std::copy_n(socket.digested.begin(), size, stand_in.begin());
  socket.digested.erase(socket.digested.begin(),
                        socket.digested.begin() + static_cast<std::ptrdiff_t>(size));
  return static_cast<ssize_t>(size);
}

}  // namespace runloom::dns
