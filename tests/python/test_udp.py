"""Datagrams: runloom.sync.udp_endpoint and the calls of Socket that serve them, beside what the
standard library's socket does."""

from __future__ import annotations

import errno
import inspect
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from socket_support import LIMIT, failure, go, join, parked_on, run

import runloom
import runloom.sync as sync
import runloom_c
from runloom.sync.socket import Socket, udp_endpoint

LOOPBACK = ("127.0.0.1", 0)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")


@contextmanager
def plain() -> Iterator[socket.socket]:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(LOOPBACK)
        sock.settimeout(LIMIT)
        yield sock


def nobody() -> Any:
    """An address where nobody is."""
    with plain() as sock:
        return sock.getsockname()


# ---- there and back ----


def test_bound_and_connected() -> None:
    def main() -> None:
        with udp_endpoint(LOOPBACK) as server:
            assert isinstance(server, Socket)
            assert server.type == socket.SOCK_DGRAM
            address = server.getsockname()
            with udp_endpoint(None, address) as client:
                assert client.getpeername() == address

                def echo() -> None:
                    data, peer = server.recvfrom(100)
                    assert peer == client.getsockname()
                    server.sendto(data.upper(), peer)

                fiber = go(echo)
                parked_on(server)
                assert client.send(b"hello") == 5
                assert client.recv(100) == b"HELLO"
                join(fiber)

    run(main)


def test_between_ours_and_plain_sockets() -> None:
    def main() -> None:
        with plain() as peer, udp_endpoint(LOOPBACK) as ours:
            ours.sendto(b"one", peer.getsockname())
            assert peer.recvfrom(10) == (b"one", ours.getsockname())
            peer.sendto(b"two", ours.getsockname())
            assert ours.recvfrom(10) == (b"two", peer.getsockname())
            buffer = bytearray(b"........")
            peer.sendto(b"three", ours.getsockname())
            assert ours.recvfrom_into(buffer) == (5, peer.getsockname())
            assert buffer == b"three..."
            peer.sendto(b"four", ours.getsockname())
            assert ours.recv_into(buffer) == 4
            assert buffer == b"foure..."
            assert ours.sendto(b"five", 0, peer.getsockname()) == 4
            assert peer.recv(10) == b"five"

    run(main)


def test_local_and_remote_address() -> None:
    def main() -> None:
        with plain() as peer, udp_endpoint(LOOPBACK, peer.getsockname()) as ours:
            assert ours.getsockname()[0] == "127.0.0.1"
            ours.send(b"x")
            assert peer.recvfrom(10) == (b"x", ours.getsockname())

    run(main)


def test_neither_address_is_an_unbound_ipv4_socket() -> None:
    def main() -> None:
        with plain() as peer, udp_endpoint() as ours:
            assert ours.family == socket.AF_INET
            assert ours.getsockname() == ("0.0.0.0", 0)
            ours.sendto(b"x", peer.getsockname())
            assert ours.getsockname()[1] != 0
            assert peer.recv(10) == b"x"

    run(main)


def test_it_may_be_connected_later_and_again() -> None:
    def main() -> None:
        with plain() as one, plain() as two, udp_endpoint(LOOPBACK) as ours:
            for peer in (one, two):
                ours.connect(peer.getsockname())
                assert ours.getpeername() == peer.getsockname()
                ours.sendall(b"hi")
                assert peer.recv(10) == b"hi"

    run(main)


@IPV6
def test_ipv6() -> None:
    def main() -> None:
        with udp_endpoint(("::1", 0)) as server, udp_endpoint(None, server.getsockname()) as client:
            assert (server.family, client.family) == (socket.AF_INET6, socket.AF_INET6)
            client.send(b"six")
            data, peer = server.recvfrom(10)
            assert (data, peer) == (b"six", client.getsockname())
            assert len(peer) == 4
        with udp_endpoint(("", 0), family=socket.AF_INET6) as both:
            assert both.getsockname()[0] == "::"

    run(main)


@IPV6
def test_the_addresses_must_have_a_family_in_common() -> None:
    def main() -> None:
        error = failure(udp_endpoint, ("127.0.0.1", 0), ("::1", 9))
        assert isinstance(error, OSError)
        assert error.errno == errno.EAFNOSUPPORT
        assert "127.0.0.1" in str(error) and "::1" in str(error)

    run(main)


@pytest.mark.parametrize("host", ["", None, "0.0.0.0"])
def test_every_address(host: str | None) -> None:
    def main() -> None:
        with udp_endpoint((host, 0)) as server, udp_endpoint() as client:
            port = server.getsockname()[1]
            assert server.getsockname()[0] == "0.0.0.0"
            client.sendto(b"x", ("127.0.0.1", port))
            assert server.recv(10) == b"x"

    run(main)


def test_a_name_is_resolved() -> None:
    def main() -> None:
        with (
            udp_endpoint(("localhost", 0), family=socket.AF_INET) as server,
            udp_endpoint(None, ("localhost", server.getsockname()[1]), family=2) as client,
        ):
            client.send(b"x")
            assert server.recv(10) == b"x"

    run(main)


# ---- rows ----


def test_an_empty_datagram_is_no_end_u02() -> None:
    def main() -> None:
        with udp_endpoint(LOOPBACK) as server, udp_endpoint(None, server.getsockname()) as client:
            me = client.getsockname()
            for data in (b"a", b"", b"b"):
                assert client.send(data) == len(data)
            assert [server.recvfrom(10) for _ in range(3)] == [(b"a", me), (b"", me), (b"b", me)]
            client.sendall(b"")
            client.send(b"after")
            assert [server.recv(10), server.recv(10)] == [b"", b"after"]
            buffer = bytearray(10)
            client.send(b"")
            assert server.recvfrom_into(buffer) == (0, me)
            server.settimeout(0.005)
            assert isinstance(failure(server.recv, 10), TimeoutError)

    run(main)


def test_an_unconnected_one_hears_of_no_closed_port_u04() -> None:
    def main() -> None:
        with udp_endpoint(LOOPBACK) as ours, plain() as peer:
            for _ in range(3):
                ours.sendto(b"anybody?", nobody())
                ours.settimeout(0.005)
                assert isinstance(failure(ours.recvfrom, 10), TimeoutError)
            ours.settimeout(None)
            peer.sendto(b"alive", ours.getsockname())
            assert ours.recvfrom(10) == (b"alive", peer.getsockname())

    run(main)


def test_the_largest_goes_and_one_byte_more_fails_u06() -> None:
    def main() -> None:
        with udp_endpoint(LOOPBACK) as server, udp_endpoint(LOOPBACK) as client:
            data = os.urandom(65_507)
            assert client.sendto(data, server.getsockname()) == 65_507
            assert server.recv(65_536) == data
            error = failure(client.sendto, data + b"x", server.getsockname())
            assert isinstance(error, OSError)
            assert error.errno == errno.EMSGSIZE
            client.sendto(b"after", server.getsockname())
            assert server.recv(65_536) == b"after"

    run(main)


def test_an_unreachable_network_fails_that_send_only_u08() -> None:
    far = ("192.0.2.1", 9)  # from the loopback's address nothing leaves the machine
    with plain() as sock:
        expected = failure(sock.sendto, b"x", far)
    assert isinstance(expected, OSError)

    def main() -> None:
        with udp_endpoint(LOOPBACK) as server, udp_endpoint(LOOPBACK) as client:
            for _ in range(3):
                error = failure(client.sendto, b"lost", far)
                assert isinstance(error, OSError)
                assert error.errno == expected.errno
                client.sendto(b"good", server.getsockname())
                assert server.recv(10) == b"good"

    run(main)


# ---- the same on the standard library's sockets ----


def told(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The result, or the kind of the error and what it says."""
    try:
        return function(*arguments, **keywords)
    except OSError as error:
        return type(error).__name__, error.errno
    except Exception as error:
        return type(error).__name__


def closed_port(make: Callable[..., Any]) -> Any:
    with make(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.05)
        sock.connect(nobody())
        results = [told(sock.send, b"x") for _ in range(3)]
        return [*results, told(sock.recv, 10), told(sock.recv, 10)]


def sizes(make: Callable[..., Any]) -> Any:
    kind = (socket.AF_INET, socket.SOCK_DGRAM)
    with make(*kind) as server, make(*kind) as client:
        server.settimeout(0.05)
        server.bind(LOOPBACK)
        client.connect(server.getsockname())
        results = []
        for call in (
            lambda: server.recv(4),
            lambda: server.recv(4, socket.MSG_PEEK),
            lambda: server.recv(100),
            lambda: server.recvfrom(0)[0],
            lambda: server.recvfrom(4)[0],
            lambda: server.recv_into(bytearray(4)),
            lambda: server.recv_into(bytearray(4), 2),
            lambda: server.recvfrom_into(bytearray(4))[0],
            lambda: server.recvfrom_into(bytearray(4), 2)[0],
            lambda: server.recvfrom_into(bytearray(4), flags=socket.MSG_TRUNC)[0],
            lambda: server.recvfrom_into(bytearray(0))[0],
            lambda: server.recvfrom_into(bytearray(4), 5),
            lambda: server.recvfrom_into(bytearray(4), -1),
            lambda: server.recvfrom_into(b"read-only"),
            lambda: server.recvfrom_into(),
            lambda: server.recvfrom(-1),
            lambda: server.recvfrom(4, socket.MSG_DONTWAIT)[0],
        ):
            client.send(b"datagram")
            results.append(told(call))
        while told(server.recv, 100) == b"datagram":
            results.append("one was left")
        return results


def arguments(make: Callable[..., Any]) -> Any:
    with make(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return [
            told(sock.sendto, b"x"),
            told(sock.sendto, b"x", None),
            told(sock.sendto, b"x", "host"),
            told(sock.sendto, b"x", ("127.0.0.1",)),
            told(sock.sendto, b"x", ("127.0.0.1", 70_000)),
            told(sock.sendto, b"x", ("127.0.0.1", -1)),
            told(sock.sendto, b"x", ("127.0.0.1", "80")),
            told(sock.sendto, "text", ("127.0.0.1", 9)),
            told(sock.sendto, b"x", "flags", ("127.0.0.1", 9)),
            told(sock.sendto, b"x", 0, ("127.0.0.1", 9), 4),
            told(sock.send, b"x"),
            told(sock.sendto, b"x", ("255.255.255.255", 9)),
            told(sock.listen),
            told(sock.getpeername),
            told(sock.shutdown, socket.SHUT_RD),
        ]


def timeouts(make: Callable[..., Any]) -> Any:
    with make(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(LOOPBACK)
        results = []
        for timeout in (0, 0.001):
            sock.settimeout(timeout)
            for call in (
                lambda: sock.recv(10),
                lambda: sock.recvfrom(10),
                lambda: sock.recv_into(bytearray(10)),
                lambda: sock.recvfrom_into(bytearray(10)),
            ):
                results.append(told(call))
        sock.setblocking(False)
        sock.sendto(b"me", sock.getsockname())
        results.append(told(sock.recv, 10))
        return results


@pytest.mark.parametrize("program", [closed_port, sizes, arguments, timeouts])
def test_as_the_standard_library(program: Callable[[Any], Any]) -> None:
    assert run(lambda: program(Socket)) == program(socket.socket)
    # Outside of fibers they block the thread, with the same results.
    assert program(Socket) == program(socket.socket)


# ---- waiting ----


def test_a_parked_receive_is_served_cancelled_timed_out_and_closed() -> None:
    def main() -> None:
        for receive in (
            lambda sock: sock.recv(10),
            lambda sock: sock.recvfrom(10),
            lambda sock: sock.recv_into(bytearray(10)),
            lambda sock: sock.recvfrom_into(bytearray(10)),
        ):
            with udp_endpoint(LOOPBACK) as sock, plain() as peer:
                fiber = go(receive, sock)
                parked_on(sock)
                peer.sendto(b"data", sock.getsockname())
                [result] = join(fiber)
                assert result in (b"data", 4, (b"data", peer.getsockname()),
                                  (4, peer.getsockname()))  # fmt: skip
                fiber = go(receive, sock)
                parked_on(sock)
                fiber.cancel()
                assert isinstance(failure(fiber.join), runloom.Cancelled)
                sock.settimeout(0.005)
                assert isinstance(failure(receive, sock), TimeoutError)
                sock.settimeout(None)
                fiber = go(receive, sock)
                parked_on(sock)
                sock.close()
                error = failure(fiber.join)
                assert isinstance(error, OSError)
                assert error.errno == errno.EBADF

    run(main)


def test_readers_are_served_in_order() -> None:
    def main() -> None:
        with udp_endpoint(LOOPBACK) as sock, plain() as peer:
            fibers = []
            for _ in range(5):
                fibers.append(go(sock.recv, 10))
                runloom_c.sched_yield()
            for i in range(5):
                peer.sendto(b"%d" % i, sock.getsockname())
            assert join(*fibers) == [b"0", b"1", b"2", b"3", b"4"]

    run(main)


def test_a_buffer_in_use_keeps_its_size() -> None:
    def main() -> None:
        with udp_endpoint(LOOPBACK) as sock, plain() as peer:
            buffer = bytearray(10)
            fiber = go(sock.recvfrom_into, buffer)
            parked_on(sock)
            assert isinstance(failure(buffer.append, 1), BufferError)
            peer.sendto(b"x", sock.getsockname())
            join(fiber)
            buffer.append(1)

    run(main)


def test_os_threads_use_one_beside_fibers() -> None:
    with udp_endpoint(LOOPBACK) as server:

        def serve() -> None:
            for _ in range(20):
                data, peer = server.recvfrom(100)
                server.sendto(data, peer)

        thread = threading.Thread(target=serve)
        thread.start()

        def main() -> None:
            with udp_endpoint(None, server.getsockname()) as client:
                for i in range(20):
                    client.send(b"%d" % i)
                    assert client.recv(100) == b"%d" % i

        run(main)
        thread.join(LIMIT)
        assert not thread.is_alive()


# ---- options, and what is wrong with arguments ----


def test_options() -> None:
    def main() -> None:
        with udp_endpoint(LOOPBACK, reuse_port=True) as one:
            with udp_endpoint(one.getsockname(), reuse_port=True):
                pass
            error = failure(udp_endpoint, one.getsockname())
            assert isinstance(error, OSError)
            assert error.errno == errno.EADDRINUSE
            assert f"127.0.0.1:{one.getsockname()[1]}" in str(error)
        with udp_endpoint(LOOPBACK, reuse_address=True, allow_broadcast=True) as sock:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST) == 1
            with udp_endpoint(("", 0)) as server:
                sock.sendto(b"all", ("127.255.255.255", server.getsockname()[1]))
                assert server.recv(10) == b"all"

    run(main)


def test_groups_by_setsockopt() -> None:
    def main() -> None:
        with udp_endpoint(("", 0)) as member, udp_endpoint() as sender:
            port = member.getsockname()[1]
            group = socket.inet_aton("239.1.2.3") + socket.inet_aton("127.0.0.1")
            member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            sender.setsockopt(
                socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
            )
            sender.sendto(b"members", ("239.1.2.3", port))
            assert member.recv(10) == b"members"

    run(main)


@pytest.mark.parametrize(
    ("keywords", "kind", "words"),
    [
        ({"local_addr": 80}, TypeError, "local_addr must be a tuple"),
        ({"local_addr": "127.0.0.1"}, TypeError, "local_addr must be a tuple"),
        ({"local_addr": ("127.0.0.1",)}, TypeError, "local_addr must be a tuple"),
        ({"remote_addr": ["127.0.0.1", 9]}, TypeError, "remote_addr must be a tuple"),
        ({"remote_addr": ("127.0.0.1", 1, 2, 3, 4)}, TypeError, "remote_addr must be a tuple"),
        ({"remote_addr": ("127.0.0.1", 9, 0, 1)}, ValueError, "remote_addr has a flow label"),
        ({"local_addr": ("127.0.0.1", "80")}, TypeError, "port"),
        ({"local_addr": ("127.0.0.1", 70_000)}, OverflowError, "port"),
        ({"local_addr": (8, 80)}, TypeError, "host"),
        ({"family": socket.AF_UNIX}, ValueError, "family must be AF_INET or AF_INET6"),
        ({"local_addr": ("192.0.2.1", 0)}, OSError, "192.0.2.1"),
        ({"local_addr": ("no..name", 0)}, socket.gaierror, ""),
    ],
)
def test_wrong_arguments(keywords: dict[str, Any], kind: type[Exception], words: str) -> None:
    def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(kind) as caught:
            sync.udp_endpoint(**keywords).close()
        assert words in str(caught.value)
        assert len(os.listdir("/proc/self/fd")) == before

    run(main)


def test_its_signature_is_documented() -> None:
    names = list(inspect.signature(sync.udp_endpoint).parameters)
    assert names[:2] == ["local_addr", "remote_addr"]
    assert 'b""' in (sync.udp_endpoint.__doc__ or "")
    assert Socket.recvfrom_into.__text_signature__ == "($self, /, buffer, nbytes=0, flags=0)"
