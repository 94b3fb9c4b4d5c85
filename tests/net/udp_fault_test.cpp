// Every system call of UdpEndpoint fails, the k-th time, with each error that it may have: an error
// or a success comes out, nothing hangs or leaks, and the endpoint is as good as before.
#include <array>

#include "support/syscall_faults.hpp"
#include "support/udp.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Address;
using net::bytes;
using net::UdpEndpoint;

constexpr std::array kErrors{
    EINTR,        EBADF, ENOBUFS,     ENOMEM,   EPERM,  EACCES,   EINVAL, EMSGSIZE,    ECONNREFUSED,
    EHOSTUNREACH, EIO,   ENETUNREACH, ENETDOWN, EFAULT, ENOTCONN, ENOSYS, EDESTADDRREQ};

// The endpoint still works.
void check_well(const Bound& server, const UdpEndpoint& client) {
  std::string buffer(100, '\0');
  while (server.endpoint.recv(writable(buffer), Deadline::now())) {
  }
  EXPECT_TRUE(client.send_to(bytes("well"), server.address));
  EXPECT_EQ(receive(server.endpoint, Deadline::after(5s)).value(), "well");
}

// Makes the k-th call fail while `use` runs; what it returns is an error with that number, or it
// went round it.
template <class Use>
void fail_each(Call call, const Bound& server, const UdpEndpoint& client, Use use) {
  for (const int err : kErrors)
    for (int k = 1; k <= 3; ++k) {
      SCOPED_TRACE(std::string("errno ") + std::to_string(err) + ", call " + std::to_string(k));
      {
        Fault fault(call, err, k);
        const auto done = use();
        if (!done) {
          EXPECT_EQ(done.error(), errno_code(err));
        }
        if (fault.failed() == 0) {
          EXPECT_TRUE(done);
        }
      }
      check_well(server, client);
    }
}

NET_TEST(UdpFault, SingleTransfers) {
  Bound server, client;
  fail_each(Call::sendmsg, server, client.endpoint, [&]() -> Result<void> {
    for (int i = 0; i < 3; ++i)
      if (auto ok = client.endpoint.send_to(bytes("x"), server.address); !ok) return ok;
    return {};
  });
  fail_each(Call::recvmsg, server, client.endpoint, [&]() -> Result<void> {
    for (int i = 0; i < 3; ++i) {
      if (auto ok = client.endpoint.send_to(bytes("x"), server.address); !ok) return ok;
      std::string buffer(10, '\0');
      const auto got = server.endpoint.recv_from(writable(buffer));
      if (!got) return Unexpected{got.error()};
      EXPECT_EQ(text_of(got->data()), "x");
    }
    return {};
  });
  const auto connected = UdpEndpoint::connect(server.address).value();
  fail_each(Call::send, server, client.endpoint, [&]() -> Result<void> {
    for (int i = 0; i < 3; ++i)
      if (auto ok = connected.send(bytes("x")); !ok) return ok;
    return {};
  });
  fail_each(Call::recv, server, client.endpoint, [&]() -> Result<void> {
    for (int i = 0; i < 3; ++i) {
      if (auto ok = client.endpoint.send_to(bytes("x"), server.address); !ok) return ok;
      if (const auto got = receive(server.endpoint); !got) return Unexpected{got.error()};
    }
    return {};
  });
}

NET_TEST(UdpFault, Batches) {
  Bound server({.receive_buffer = 1 << 20}), client;
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < 150; ++i)
    texts.push_back(pattern(i / 10 + 1, i));
  std::vector<net::OutDatagram> out;
  for (const std::string& text : texts)
    out.push_back({.data = bytes(text), .peer = server.address});
  // What did not go in the first call is sent by the next ones; the error is the first one's.
  fail_each(Call::sendmmsg, server, client.endpoint, [&]() -> Result<void> {
    for (std::size_t sent = 0; sent < out.size();) {
      const auto some = client.endpoint.send_many(std::span(out).subspan(sent));
      if (!some) return Unexpected{some.error()};
      EXPECT_GT(*some, 0u);
      sent += *some;
    }
    return {};
  });
  DatagramBuffers batch(8, 100);
  fail_each(Call::recvmmsg, server, client.endpoint, [&]() -> Result<void> {
    for (int i = 0; i < 3; ++i) {
      if (auto ok = client.endpoint.send_to(bytes("x"), server.address); !ok) return ok;
      if (const auto got = server.endpoint.recv_many(batch.all()); !got)
        return Unexpected{got.error()};
    }
    return {};
  });
}

// A reader that is parked when its call begins to fail.
NET_TEST(UdpFault, AParkedReaderIsTold) {
  Bound server, client;
  for (const int err : kErrors) {
    auto reader = spawn([&] { return receive(server.endpoint); });
    until_parked(reader.handle(), WaitReason::io_read);
    Fault fault(Call::recv, err);
    ASSERT_TRUE(client.endpoint.send_to(bytes("x"), server.address));
    const auto got = reader.join();
    if (err == EINTR) {
      EXPECT_EQ(got.value(), "x");
    } else {
      EXPECT_EQ(got.error(), errno_code(err));
      EXPECT_EQ(receive(server.endpoint).value(), "x");
    }
  }
}

// Each step of making one fails: the error comes out, and no descriptor stays, which the teardown
// counts.
NET_TEST(UdpFault, Making) {
  const net::UdpOptions options{.reuse_address = true,
                                .reuse_port = true,
                                .broadcast = true,
                                .send_buffer = 10'000,
                                .receive_buffer = 10'000,
                                .destination = true,
                                .local = Address::loopback_ipv4()};
  Bound server;
  for (const int err : {EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, EACCES, EINVAL, ENOPROTOOPT,
                        EADDRINUSE, EADDRNOTAVAIL, ENETUNREACH})
    for (const Call call : {Call::socket, Call::setsockopt, Call::bind, Call::connect})
      for (int k = 1; k <= 6; ++k) {
        Fault fault(call, err, k);
        const auto made = UdpEndpoint::connect(server.address, options);
        EXPECT_EQ(static_cast<bool>(made), fault.failed() == 0);
        if (!made) {
          EXPECT_EQ(made.error(), errno_code(err));
        }
      }
}

// Coalescing is an extra: without it the endpoint works all the same, and says so.
NET_TEST(UdpFault, CoalescingIsNotToBeHad) {
  Fault fault(Call::setsockopt, ENOPROTOOPT);
  Bound server({.coalesce_received = true});
  EXPECT_EQ(fault.failed(), 1);
  EXPECT_FALSE(server.endpoint.coalesces_received());
  ASSERT_TRUE(server.endpoint.send_to(bytes("x"), server.address));
  std::string buffer(10, '\0');
  EXPECT_EQ(server.endpoint.recv_from(writable(buffer)).value().segment_size, 0u);
}

}  // namespace
}  // namespace runloom::test
