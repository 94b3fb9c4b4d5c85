// The TLS pump: a client and a server over a wire that the input controls. It decides who writes,
// reads and updates keys, how much the wire takes and delivers at a time, and which bytes are
// changed on it. Whatever happens, what one side reads is a prefix of what the other has written;
// and all of it, when nothing was changed or cut.
//
// The first byte chooses: above 250 the rest goes straight to a server or a client that expects a
// handshake.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "runloom/sched/check.hpp"
#include "runloom/tls/context.hpp"
#include "runloom/tls/stream.hpp"
#include "support/tls_pki.hpp"

using namespace runloom;

namespace {

// One direction: bytes in flight, and those that have arrived.
struct Wire {
  std::deque<char> in_flight;
  std::deque<char> arrived;
  std::size_t room = 1 << 20;  // that the sender finds
  bool ended = false;

  void deliver(std::size_t count) {
    for (; count > 0 && !in_flight.empty(); --count) {
      arrived.push_back(in_flight.front());
      in_flight.pop_front();
    }
  }
};

// An end of the wire. It never waits: what would, times out.
class End final : public net::Stream {
 public:
  End(Wire& in, Wire& out) : in_(in), out_(out) {}
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline) override {
    if (in_.arrived.empty()) {
      if (in_.ended && in_.in_flight.empty()) return std::size_t{0};
      return fail(Errc::timed_out);
    }
    const std::size_t count = std::min(buffer.size(), in_.arrived.size());
    for (std::size_t i = 0; i < count; ++i) {
      buffer[i] = static_cast<std::byte>(in_.arrived.front());
      in_.arrived.pop_front();
    }
    return count;
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline) override {
    if (out_.ended) return fail_errno(EPIPE);
    const std::size_t count = std::min(data.size(), out_.room);
    if (count == 0) return fail(Errc::timed_out);
    for (const std::byte byte : data.first(count))
      out_.in_flight.push_back(static_cast<char>(byte));
    out_.room -= count;
    return count;
  }
  Result<void> wait_readable(Deadline) override {
    if (in_.arrived.empty() && !in_.ended) return fail(Errc::timed_out);
    return {};
  }
  Result<void> shutdown_write() override { return {}; }
  void close() noexcept override { out_.ended = true; }

 private:
  Wire& in_;
  Wire& out_;
};

struct Contexts {
  Contexts() {
    const test::Authority authority("fuzz");
    const test::Issued issued = authority.issue({.names = {"DNS:localhost"}});
    tls::ContextOptions at_server;
    at_server.identities.resize(1);
    at_server.identities[0].certificate_pem = issued.certificate_pem;
    at_server.identities[0].key_pem = issued.key_pem;
    at_server.alpn = {"a", "b"};
    at_server.on_client_hello = [](const tls::ClientHello&) -> Result<std::optional<tls::Context>> {
      return std::optional<tls::Context>();
    };
    server = tls::Context::server(at_server).value();
    tls::ContextOptions at_client;
    at_client.ca_pem = authority.pem();
    at_client.alpn = {"b"};
    client13 = tls::Context::client(at_client).value();
    at_client.max_version = tls::Version::tls1_2;
    client12 = tls::Context::client(at_client).value();
  }
  tls::Context server;
  tls::Context client12;
  tls::Context client13;
};
const Contexts& contexts() {
  static const Contexts made;
  return made;
}

// One side with what it has written, and read.
struct Side {
  tls::Stream stream;
  std::string written;
  std::string read;
  bool ended = false;   // has read the end
  bool failed = false;  // has met an error that is no timeout
};

bool transient(std::error_code error) {
  return error == Errc::timed_out;
}

void write(Side& side, std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i)
    text[i] = static_cast<char>((side.written.size() + i) * 7 >> 3);
  std::size_t written = 0;
  const auto done = side.stream.write_all(net::bytes(text), Deadline::now(), &written);
  RUNLOOM_CHECK(written <= size && (!done || written == size), "a write counts what it took");
  side.written += text.substr(0, written);
}

void read(Side& side, const Side& other, std::size_t size) {
  std::string buffer(size, '\0');
  const auto count =
      side.stream.read_some(std::as_writable_bytes(std::span(buffer)), Deadline::now());
  if (!count) {
    side.failed |= !transient(count.error());
    return;
  }
  RUNLOOM_CHECK(!side.ended || *count == 0, "nothing comes behind the end");
  side.ended |= *count == 0;
  side.read.append(buffer, 0, *count);
  RUNLOOM_CHECK(side.read.size() <= other.written.size() &&
                    other.written.compare(0, side.read.size(), side.read) == 0,
                "what is read was written");
}

void raw(const std::uint8_t* data, std::size_t size, bool server) {
  Wire in;
  Wire out;
  in.in_flight.assign(data, data + size);
  in.deliver(size);
  in.ended = true;
  auto end = std::make_unique<End>(in, out);
  auto stream =
      server ? tls::Stream::server(std::move(end), contexts().server)
             : tls::Stream::client(std::move(end), contexts().client13, {.host = "localhost"});
  char byte;
  RUNLOOM_CHECK(stream, "a stream can be made");
  const auto count =
      stream->read_some(std::as_writable_bytes(std::span(&byte, 1)), Deadline::now());
  RUNLOOM_CHECK(!count, "no handshake, no data");
  RUNLOOM_CHECK(!count.error().message().empty(), "an error has words");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t first = data[0];
  ++data;
  --size;
  if (first > 250) {
    raw(data, size, first % 2 == 0);
    return 0;
  }
  Wire up;
  Wire down;
  Side client;
  Side server;
  client.stream = tls::Stream::client(std::make_unique<End>(down, up),
                                      first % 2 ? contexts().client12 : contexts().client13,
                                      {.host = "localhost"})
                      .value();
  server.stream = tls::Stream::server(std::make_unique<End>(up, down), contexts().server).value();
  // Established first, unless the input wants to see that, too.
  const auto shake = [&](bool all) {
    for (int i = 0; i < 8; ++i) {
      client.failed |= [&] {
        const auto done = client.stream.handshake(Deadline::now());
        return !done && !transient(done.error());
      }();
      if (all) up.deliver(1 << 20);
      server.failed |= [&] {
        const auto done = server.stream.handshake(Deadline::now());
        return !done && !transient(done.error());
      }();
      if (all) down.deliver(1 << 20);
    }
  };
  if (first < 200) shake(true);
  bool honest = true;
  for (std::size_t i = 0; i < std::min<std::size_t>(size, 400); ++i) {
    const unsigned argument = data[i] >> 3;
    Side& side = argument % 2 ? client : server;
    Wire& wire = argument % 2 ? up : down;
    switch (data[i] & 7) {
      case 0:
        write(client, argument * argument * 40);
        break;
      case 1:
        write(server, argument * argument * 40);
        break;
      case 2:
        read(client, server, 1 + argument * argument * 20);
        break;
      case 3:
        read(server, client, 1 + argument * argument * 20);
        break;
      case 4:
        up.deliver(1 + argument * argument * 30);
        break;
      case 5:
        down.deliver(1 + argument * argument * 30);
        break;
      case 6:
        wire.room = argument > 28 ? 1 << 20 : argument * 100;
        break;
      default:
        switch (argument / 2) {
          case 0:
            static_cast<void>(side.stream.update_keys(false, Deadline::now()));
            break;
          case 1:
            static_cast<void>(side.stream.update_keys(true, Deadline::now()));
            break;
          case 2:
            static_cast<void>(side.stream.shutdown_write(Deadline::now()));
            break;
          case 3:
            static_cast<void>(side.stream.wait_readable(Deadline::now()));
            break;
          case 4:
            shake(false);
            break;
          case 5:
            honest &= wire.in_flight.empty();
            if (!wire.in_flight.empty()) wire.in_flight.back() ^= 1;
            break;
          case 6:
            honest = false;
            wire.ended = true;
            break;
          case 7:
            honest &= wire.in_flight.empty();
            if (!wire.in_flight.empty()) wire.in_flight.pop_front();
            break;
          default:
            break;
        }
    }
  }
  // What is left is let through.
  for (int round = 0; round < 40; ++round) {
    up.room = down.room = 1 << 20;
    shake(true);
    write(client, 0);
    write(server, 0);
    up.deliver(1 << 20);
    down.deliver(1 << 20);
    read(client, server, 100'000);
    read(server, client, 100'000);
  }
  if (honest && !client.failed && !server.failed) {
    RUNLOOM_CHECK(client.read.size() == server.written.size(), "all of it arrives at the client");
    RUNLOOM_CHECK(server.read.size() == client.written.size(), "all of it arrives at the server");
  }
  return 0;
}
