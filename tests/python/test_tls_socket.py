"""TLS connections, with contexts of runloom and of the standard library at either end."""

from __future__ import annotations

import errno
import gc
import hashlib
import io
import os
import socket
import ssl
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
from socket_support import (
    LIMIT,
    failure,
    go,
    idle_cpu,
    join,
    own_pair,
    parked_on,
    read_all,
    read_exactly,
    run,
)
from tls_support import (
    BOTH,
    NATIVE,
    STOCK,
    bare_pair,
    client_context,
    plain_server,
    port_of,
    server_context,
    tls_listener,
    tls_pair,
    world,
)

import runloom
import runloom.sync as sync
import runloom.tls

MEGABYTE = 1 << 20

both_ends = pytest.mark.parametrize(
    ("client_kind", "server_kind"), [(c, s) for c in BOTH for s in BOTH]
)
each_kind = pytest.mark.parametrize("kind", BOTH)


# ---------------------------------------------------------------- transfers


@both_ends
def test_a_connection_says_what_it_is(client_kind: str, server_kind: str, tmp_path: Path) -> None:
    def main() -> None:
        client, server = client_context(client_kind), server_context(server_kind, tmp_path)
        client.set_alpn_protocols(["h2", "http/1.1"])
        server.set_alpn_protocols(["http/1.1"])
        with tls_pair(client, server) as (ours, theirs):
            for end in (ours, theirs):
                assert end.version() == "TLSv1.3"
                name, version, bits = end.cipher()
                assert name.startswith("TLS_")
                assert version == "TLSv1.3"
                assert bits >= 128
                assert end.selected_alpn_protocol() == "http/1.1"
                assert end.compression() is None
                assert end.pending() == 0
                assert end.family == socket.AF_INET
                assert end.type == socket.SOCK_STREAM
                assert not end.session_reused
                assert end.fileno() >= 0
            assert ours.getpeername() == theirs.getsockname()
            assert ours.getsockname() == theirs.getpeername()
            assert ours.server_hostname == "localhost"
            assert not ours.server_side
            assert theirs.server_side
            assert ours.context is client
            certificate = ours.getpeercert()
            assert ("DNS", "localhost") in certificate["subjectAltName"]
            der = ours.getpeercert(True)
            assert ssl.DER_cert_to_PEM_cert(der).strip() in world().server.cert_chain_pems[
                0
            ].bytes().decode().replace("\r", "")
            assert theirs.getpeercert() is None
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert "TLSv1.3" in repr(ours)

    run(main)


@both_ends
def test_L05_both_sides_send_at_once(client_kind: str, server_kind: str, tmp_path: Path) -> None:
    data = [os.urandom(3 * MEGABYTE), os.urandom(3 * MEGABYTE)]

    def main() -> None:
        client, server = client_context(client_kind), server_context(server_kind, tmp_path)
        with tls_pair(client, server) as ends:
            senders = [
                go(lambda end=end, out=out: (end.sendall(out), end.shutdown(socket.SHUT_WR)))
                for end, out in zip(ends, data, strict=True)
            ]
            readers = [go(read_all, end) for end in ends]
            join(*senders)
            left, right = join(*readers)
            assert hashlib.sha256(left).digest() == hashlib.sha256(data[1]).digest()
            assert hashlib.sha256(right).digest() == hashlib.sha256(data[0]).digest()

    run(main)


@each_kind
def test_reads_have_the_sizes_that_were_asked_for(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            ours.sendall(b"0123456789" * 10)
            assert theirs.recv(3) == b"012"
            assert theirs.pending() == 97
            assert theirs.read(2) == b"34"
            buffer = bytearray(8)
            assert theirs.recv_into(buffer, 4) == 4
            assert buffer == b"5678\0\0\0\0"
            assert theirs.recv_into(memoryview(buffer)) == 8
            assert bytes(buffer) == b"90123456"
            assert theirs.read(3, buffer) == 3
            assert len(theirs.recv(1000)) == 80
            assert theirs.recv(0) == b""
            assert theirs.recv_into(bytearray()) == 0
            assert ours.send(b"") == 0
            ours.sendall(b"")
            assert ours.write(b"x") == 1
            assert theirs.recv(10) == b"x"

    run(main)


@each_kind
def test_wrong_arguments_are_named(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            with pytest.raises(ValueError, match="negative buffersize in recv"):
                ours.recv(-1)
            with pytest.raises(ValueError, match="non-zero flags not allowed in calls to recv"):
                ours.recv(1, socket.MSG_PEEK)
            with pytest.raises(ValueError, match="non-zero flags"):
                ours.send(b"x", socket.MSG_OOB)
            with pytest.raises(ValueError, match="non-zero flags"):
                ours.sendall(b"x", 1)
            with pytest.raises(ValueError, match="buffer too small"):
                ours.recv_into(bytearray(2), 3)
            for call in (ours.sendall, ours.send, ours.write):
                with pytest.raises(TypeError):
                    call("text")
            with pytest.raises(TypeError):
                ours.recv("1")
            with pytest.raises(TypeError):
                ours.recv_into(b"constant")
            with pytest.raises(OSError) as caught:
                ours.shutdown(7)
            assert caught.value.errno == errno.EINVAL
            # None of it has harmed the connection.
            ours.sendall(b"whole")
            assert theirs.recv(10) == b"whole"

    run(main)


@each_kind
def test_readers_and_writers_queue(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            readers = [go(theirs.recv, 1) for _ in range(5)]
            writers = [go(ours.sendall, bytes([each]) * 40_000) for each in b"abc"]
            assert len(b"".join(join(*readers))) == 5
            rest = read_exactly(theirs, 3 * 40_000 - 5)
            join(*writers)
            # Nobody's bytes came in between.
            assert len(rest.lstrip(rest[:1])) == 80_000
            assert sorted(set(rest)) == sorted(b"abc")

    run(main)


@each_kind
def test_files_over_a_connection(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        (tmp_path / "data").write_bytes(b"0123456789")
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            with ours.makefile("wb") as file:
                file.write(b"one\ntwo\n")
            with (tmp_path / "data").open("rb") as data:
                assert ours.sendfile(data, 2, 5) == 5
                assert data.tell() == 7
            ours.close()
            with theirs.makefile("r") as text:
                theirs.close()
                assert text.readlines() == ["one\n", "two\n", "23456"]
            assert theirs.fileno() == -1

    run(main)


# ---------------------------------------------------------------- ends


@both_ends
def test_shutdown_ends_one_direction(client_kind: str, server_kind: str, tmp_path: Path) -> None:
    def main() -> None:
        client, server = client_context(client_kind), server_context(server_kind, tmp_path)
        with tls_pair(client, server) as (ours, theirs):
            ours.sendall(b"question")
            ours.shutdown(socket.SHUT_WR)
            assert read_all(theirs) == b"question"
            theirs.sendall(b"answer")
            theirs.close()
            assert read_all(ours) == b"answer"
            assert ours.recv(1) == b""
            assert failure(ours.sendall, b"more") is not None

    run(main)


@each_kind
def test_L01_an_end_that_was_not_said_is_an_error(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        for ragged in (False, True):
            client, server = client_context(kind), server_context(kind, tmp_path)
            with tls_pair(client, server, suppress_ragged_eofs=ragged) as (ours, theirs):
                theirs.sendall(b"half a re")
                # The kernel's end, without one of TLS.
                with socket.socket(fileno=os.dup(theirs.fileno())) as below:
                    below.shutdown(socket.SHUT_WR)
                assert ours.recv(100) == b"half a re"
                for _ in range(2):
                    if ragged:
                        assert ours.recv(100) == b""
                        assert ours.recv_into(bytearray(5)) == 0
                    else:
                        with pytest.raises(ssl.SSLEOFError):
                            ours.recv(100)

    run(main)


@each_kind
def test_close_says_goodbye_unless_something_went_wrong(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            ours.close()
            ours.close()
            assert theirs.recv(1) == b""
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            with pytest.raises(ZeroDivisionError), ours:
                ours.sendall(b"the first half")
                raise ZeroDivisionError
            assert theirs.recv(100) == b"the first half"
            with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
                theirs.recv(1)
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            try:
                raise ValueError
            except ValueError:
                ours.close()
            with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
                theirs.recv(1)

    run(main)


@each_kind
def test_a_closed_connection(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, _):
            ours.close()
            assert ours.fileno() == -1
            for call in (
                lambda: ours.recv(1),
                lambda: ours.recv_into(bytearray(1)),
                lambda: ours.sendall(b"x"),
                lambda: ours.send(b"x"),
                lambda: ours.unwrap(),
                lambda: ours.shutdown(socket.SHUT_WR),
                lambda: ours.getpeername(),
            ):
                error = failure(call)
                assert isinstance(error, OSError), error
                assert error.errno == errno.EBADF
            assert "-1" in repr(ours)

    run(main)


@each_kind
def test_close_wakes_a_reader(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, _):
            reader = go(failure, ours.recv, 1)
            parked_on(ours)
            ours.close()
            error = join(reader)[0]
            assert isinstance(error, OSError)
            assert error.errno == errno.EBADF

    run(main)


@both_ends
def test_unwrap_gives_the_socket_back(client_kind: str, server_kind: str, tmp_path: Path) -> None:
    def main() -> None:
        client, server = client_context(client_kind), server_context(server_kind, tmp_path)
        with tls_pair(client, server) as (ours, theirs):
            other = go(theirs.unwrap)
            left = ours.unwrap()
            right = join(other)[0]
            assert type(left) is sync.Socket
            with left, right:
                left.sendall(b"plain")
                assert right.recv(100) == b"plain"
                # And again.
                accepted = go(lambda: right.start_tls(server, server_side=True))
                again = left.start_tls(client, server_hostname="localhost")
                with again, join(accepted)[0] as peer:
                    again.sendall(b"secret")
                    assert peer.recv(100) == b"secret"
            assert ours.fileno() == -1

    run(main)


@each_kind
def test_what_follows_the_end_of_tls_is_not_lost(kind: str, tmp_path: Path) -> None:
    """The peer's goodbye and what it says in the clear come in one segment."""

    def main() -> None:
        context = ssl.create_default_context(cadata=world().ca_pem)
        with own_pair() as (left, right):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            peer = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            accepted = go(lambda: right.start_tls(server_context(kind, tmp_path), server_side=True))
            while True:
                try:
                    peer.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    left.sendall(outgoing.read())
                    incoming.write(left.recv(65536))
            left.sendall(outgoing.read())
            ours = join(accepted)[0]
            with pytest.raises(ssl.SSLWantReadError):
                peer.unwrap()
            left.sendall(outgoing.read() + b"in the clear")
            with ours.unwrap() as plain:
                if kind == NATIVE:
                    # What has no bytes of its own to give says so.
                    for call in (plain.detach, plain.dup, lambda: plain.recvfrom(10)):
                        error = failure(call)
                        assert isinstance(error, OSError)
                        assert error.errno == errno.EBUSY
                assert plain.recv(2, socket.MSG_PEEK) == b"in"
                assert plain.recv(3) == b"in "
                buffer = bytearray(3)
                assert plain.recv_into(buffer) == 3
                assert buffer == b"the"
                assert read_exactly(plain, 6) == b" clear"
                left.sendall(b"more")
                assert plain.recv(10) == b"more"

    run(main)


def test_L04_data_after_our_goodbye_ends_unwrap(tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(NATIVE), server_context(NATIVE, tmp_path)) as (ours, theirs):
            theirs.sendall(b"much more to come")
            with pytest.raises(ssl.SSLError) as caught:
                ours.unwrap()
            assert caught.value.reason == "APPLICATION_DATA_AFTER_CLOSE_NOTIFY"
            assert caught.value.library == "SSL"

    run(main)


# ---------------------------------------------------------------- timeouts and cancellation


@each_kind
def test_L26_timeouts(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            assert ours.gettimeout() is None
            ours.settimeout(0.02)
            assert ours.timeout == 0.02
            begin = time.monotonic()
            with pytest.raises(TimeoutError):
                ours.recv(1)
            assert time.monotonic() - begin >= 0.02
            with pytest.raises(TimeoutError):
                while True:
                    ours.sendall(bytes(MEGABYTE))
            with pytest.raises(OSError):  # what was sent in part can't go on
                ours.sendall(b"x")
            ours.settimeout(0)
            assert not ours.getblocking()
            with pytest.raises(ssl.SSLWantReadError):
                ours.recv(1)
            theirs.setblocking(False)
            with pytest.raises(ssl.SSLWantWriteError):
                while True:
                    theirs.send(bytes(MEGABYTE))
            with pytest.raises(ValueError):
                ours.settimeout(-1)

    run(main)


@each_kind
def test_L26_a_handshake_that_stalls(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with own_pair() as (left, _right):
            ours = left.start_tls(
                client_context(kind), server_hostname="localhost", do_handshake=False
            )
            ours.settimeout(0.02)
            for call in (ours.do_handshake, lambda: ours.recv(1), lambda: ours.sendall(b"x")):
                with pytest.raises(TimeoutError):
                    call()
            ours.settimeout(0)
            with pytest.raises(ssl.SSLWantReadError):
                ours.do_handshake()
            with pytest.raises((ssl.SSLError, ValueError)):
                ours.getpeercert()
            assert ours.version() is None or kind == STOCK
            assert ours.cipher() is None
            ours.close()

    run(main)


@each_kind
def test_L02_a_client_that_says_nothing_is_dropped(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_listener(server_context(kind, tmp_path), handshake_timeout=0.03) as listener:
            silent = [sync.tcp_connect("127.0.0.1", port_of(listener)) for _ in range(20)]
            conns = [listener.accept()[0] for _ in silent]
            silent[0].sendall(b"\x16")  # a byte of a record
            begin = time.monotonic()
            served = [go(failure, conn.recv, 1) for conn in conns]
            # Others are served meanwhile.
            accepted = go(lambda: listener.accept()[0])
            _connect_while(listener, accepted, kind).close()
            for error in join(*served):
                assert isinstance(error, TimeoutError)
                assert "TLS handshake timed out" in str(error)
            assert time.monotonic() - begin >= 0.03
            for conn, peer in zip(conns, silent, strict=True):
                assert conn.fileno() == -1
                with peer:
                    assert isinstance(failure(peer.recv, 1), OSError) or not peer.recv(1)

    run(main)


def _connect_while(listener: Any, accepted: Any, kind: str) -> Any:
    def serve() -> None:
        with join(accepted)[0] as conn:
            conn.do_handshake()

    server = go(serve)
    client = sync.tls_connect("localhost", port_of(listener), context=client_context(kind))
    join(server)
    return client


def test_L02_the_handshake_deadline_is_ten_seconds_unless_told_otherwise() -> None:
    assert runloom.tls.DEFAULT_HANDSHAKE_TIMEOUT == 10


@each_kind
def test_a_cancelled_reader_goes_and_the_connection_stays(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            for _ in range(3):
                reader = go(failure, ours.recv, 1)
                parked_on(ours)
                reader.cancel()
                assert isinstance(join(reader)[0], runloom.Cancelled)
            theirs.sendall(b"x")
            assert ours.recv(1) == b"x"

    run(main)


@each_kind
def test_a_reader_that_waits_uses_no_time(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(kind), server_context(kind, tmp_path)) as (ours, theirs):
            reader = go(ours.recv, 1)
            parked_on(ours)
            assert idle_cpu(0.3) < 0.02
            theirs.sendall(b"x")
            assert join(reader) == [b"x"]

    run(main)


# ---------------------------------------------------------------- starting in the middle


@each_kind
def test_L10_what_was_read_ahead_belongs_to_tls(kind: str, tmp_path: Path) -> None:
    """A line of text and the first message of TLS in one segment."""

    def main() -> None:
        context = ssl.create_default_context(cadata=world().ca_pem)
        with own_pair() as (left, right):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            peer = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            with pytest.raises(ssl.SSLWantReadError):
                peer.do_handshake()
            left.sendall(b"STARTTLS\r\n" + outgoing.read())
            reader = right.makefile("rb")
            assert reader.readline() == b"STARTTLS\r\n"
            accepted = go(lambda: right.start_tls(server_context(kind, tmp_path), server_side=True))
            incoming.write(left.recv(65536))
            peer.do_handshake()
            left.sendall(outgoing.read())
            with join(accepted)[0] as ours:
                peer.write(b"secret")
                left.sendall(outgoing.read())
                assert ours.recv(100) == b"secret"
                assert right.fileno() == -1
                error = failure(reader.read, 1)
                assert isinstance(error, OSError)

    run(main)


@each_kind
def test_L12_what_was_written_goes_out_before(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with own_pair() as (left, right):
            file = left.makefile("wb")
            file.write(b"220 go ahead\r\n")  # not flushed
            reader = right.makefile("rb", 0)
            begun = go(lambda: left.start_tls(server_context(kind, tmp_path), server_side=True))
            assert right.recv(14) == b"220 go ahead\r\n"
            reader.close()
            client = right.start_tls(client_context(kind), server_hostname="localhost")
            with client, join(begun)[0] as server:
                server.sendall(b"x")
                assert client.recv(1) == b"x"

    run(main)


def test_a_text_file_may_have_read_ahead(tmp_path: Path) -> None:
    def main() -> None:
        with own_pair() as (left, right):
            with left.makefile("r"), pytest.raises(ValueError, match="text file"):
                left.start_tls(client_context(NATIVE), server_hostname="localhost")
            # Nothing has happened to the socket.
            left.sendall(b"x")
            assert right.recv(1) == b"x"

    run(main)


def test_start_tls_takes_the_socket(tmp_path: Path) -> None:
    def main() -> None:
        with own_pair() as (left, _):
            reader = go(failure, left.recv, 1)
            parked_on(left)
            ours = left.start_tls(
                client_context(NATIVE), server_hostname="localhost", do_handshake=False
            )
            error = join(reader)[0]
            assert isinstance(error, OSError)
            assert error.errno == errno.EBADF
            assert left.fileno() == -1
            assert isinstance(failure(left.start_tls, client_context(NATIVE)), ValueError)
            error = failure(lambda: left.start_tls(client_context(NATIVE), server_hostname="x"))
            assert isinstance(error, OSError)
            assert error.errno == errno.EBADF
            ours.close()

    run(main)


def test_tls_in_tls(tmp_path: Path) -> None:
    data = os.urandom(MEGABYTE)

    def main() -> None:
        client, server = client_context(NATIVE), server_context(NATIVE, tmp_path)
        with tls_pair(client, server) as (outer_client, outer_server):
            begun = go(lambda: outer_server.start_tls(server, server_side=True))
            inner_client = outer_client.start_tls(client, server_hostname="example.test")
            inner_server = join(begun)[0]
            assert outer_client.fileno() == -1
            error = failure(outer_client.recv, 1)
            assert isinstance(error, OSError)
            outer_client.close()  # nobody's any more
            sender = go(inner_client.sendall, data)
            assert read_exactly(inner_server, len(data)) == data
            join(sender)
            assert inner_client.fileno() >= 0
            other = go(inner_server.unwrap)
            assert inner_client.unwrap() is outer_client
            assert join(other)[0] is outer_server
            outer_client.sendall(b"outer")
            assert outer_server.recv(100) == b"outer"

    run(main)


def test_a_socket_in_use_by_tls_is_not_wrapped(tmp_path: Path) -> None:
    def main() -> None:
        client, server = client_context(NATIVE), server_context(NATIVE, tmp_path)
        with tls_pair(client, server) as (ours, theirs):
            reader = go(ours.recv, 1)
            parked_on(ours)
            error = failure(lambda: ours.start_tls(client, server_hostname="localhost"))
            assert isinstance(error, OSError)
            assert error.errno == errno.EBUSY
            theirs.sendall(b"x")
            assert join(reader) == [b"x"]

    run(main)


def test_what_can_not_be_wrapped(tmp_path: Path) -> None:
    def main() -> None:
        client = client_context(NATIVE)
        listener = sync.tcp_listen("127.0.0.1", 0)
        with listener, pytest.raises(ValueError, match="connected stream"):
            listener.start_tls(client, server_hostname="localhost")
        with sync.udp_endpoint() as endpoint, pytest.raises(ValueError, match="connected stream"):
            endpoint.start_tls(client, server_hostname="localhost")
        with socket.socket() as plain, pytest.raises(TypeError, match=r"runloom\.sync\.Socket"):
            client.wrap_socket(plain, server_hostname="localhost")
        with own_pair() as (left, right):
            with pytest.raises(TypeError, match="context must be"):
                left.start_tls("context")
            with pytest.raises(TypeError, match="needs a context"):
                left.start_tls(server_side=True)
            with pytest.raises(ValueError, match="check_hostname requires server_hostname"):
                left.start_tls(client)
            with pytest.raises(ValueError, match="cannot be an empty string"):
                left.start_tls(client, server_hostname="")
            with pytest.raises(ValueError, match="host name"):
                left.start_tls(client, server_hostname="a" * 300)
            with pytest.raises(ValueError, match="not for the server's side"):
                left.start_tls(client, server_side=True)
            with pytest.raises(ValueError, match="handshake_timeout must be positive"):
                left.start_tls(client, server_hostname="localhost", handshake_timeout=0)
            with pytest.raises(TypeError, match="session must be a TLSSession"):
                left.start_tls(client, server_hostname="localhost", session=7)
            left.sendall(b"still plain")
            assert right.recv(100) == b"still plain"

    run(main)


# ---------------------------------------------------------------- listeners and clients


@both_ends
def test_a_listener_serves_many(client_kind: str, server_kind: str, tmp_path: Path) -> None:
    count = 20

    def main() -> None:
        def handle(conn: Any) -> None:
            with conn:
                while data := conn.recv(1000):
                    conn.sendall(data)

        def serve(listener: Any) -> None:
            for _ in range(count):
                conn, address = listener.accept()
                assert address[0] == "127.0.0.1"
                go(handle, conn)

        def ask(port: int, number: int) -> None:
            with sync.tls_connect("localhost", port, context=client_context(client_kind)) as conn:
                assert conn.gettimeout() is None
                conn.sendall(b"%d" % number)
                assert conn.recv(100) == b"%d" % number

        with tls_listener(server_context(server_kind, tmp_path)) as listener:
            server = go(serve, listener)
            join(*[go(ask, port_of(listener), each) for each in range(count)])
            join(server)

    run(main)


def test_a_listener_of_files(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    world().server.cert_chain_pems[0].write_to_path(str(certificate))
    world().server.private_key_pem.write_to_path(str(key))

    def main() -> None:
        with sync.tls_listen(
            "127.0.0.1", 0, certfile=str(certificate), keyfile=str(key), backlog=5
        ) as listener:
            assert isinstance(listener, sync.Socket)
            server = go(lambda: listener.accept()[0].sendall(b"hello"))
            conn = sync.tls_connect(
                "127.0.0.1",
                port_of(listener),
                context=client_context(NATIVE),
                server_hostname="example.test",
                timeout=LIMIT,
            )
            with conn:
                assert conn.recv(100) == b"hello"
                assert conn.server_hostname == "example.test"
            join(server)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        run(main)
        gc.collect()


def test_arguments_of_a_listener(tmp_path: Path) -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="a certfile or a context"):
            sync.tls_listen("127.0.0.1", 0)
        with pytest.raises(TypeError, match="a certfile or a context"):
            sync.tls_listen("127.0.0.1", 0, certfile="x", context=server_context(NATIVE, tmp_path))
        with pytest.raises(TypeError, match="keyfile only with a certfile"):
            sync.tls_listen("127.0.0.1", 0, keyfile="x", context=server_context(NATIVE, tmp_path))
        with pytest.raises(ValueError, match="PROTOCOL_TLS_SERVER"):
            sync.tls_listen("127.0.0.1", 0, context=client_context(NATIVE))
        with pytest.raises(TypeError, match="context must be"):
            sync.tls_listen("127.0.0.1", 0, context=7)  # type: ignore[arg-type]
        with pytest.raises(FileNotFoundError):
            sync.tls_listen("127.0.0.1", 0, certfile=str(tmp_path / "none"))
        with pytest.raises(ssl.SSLError, match="server needs a certificate"):
            sync.tls_listen("127.0.0.1", 0, context=runloom.tls.Context(ssl.PROTOCOL_TLS_SERVER))

    run(main)


def test_a_connect_whose_peer_stalls_ends_in_time(tmp_path: Path) -> None:
    def main() -> None:
        with sync.tcp_listen("127.0.0.1", 0) as listener:
            for kind in BOTH:
                begin = time.monotonic()
                with pytest.raises(TimeoutError):
                    sync.tls_connect(
                        "localhost", port_of(listener), context=client_context(kind), timeout=0.03
                    )
                assert time.monotonic() - begin >= 0.03

    run(main)


@each_kind
def test_a_thread_outside_of_fibers(kind: str, tmp_path: Path) -> None:
    """No scheduler runs: the calls block the thread."""
    with tls_listener(server_context(kind, tmp_path)) as listener:
        answers: list[bytes] = []

        def ask() -> None:
            with sync.tls_connect(
                "localhost", port_of(listener), context=client_context(kind)
            ) as client:
                client.sendall(b"ping" * 100_000)
                client.shutdown(socket.SHUT_WR)
                answers.append(read_all(client))

        thread = threading.Thread(target=ask)
        thread.start()
        conn, _ = listener.accept()
        with conn:
            data = read_all(conn)
            conn.sendall(data)
        thread.join(LIMIT)
        assert answers == [b"ping" * 100_000]


# ---------------------------------------------------------------- objects


def test_nothing_is_leaked(tmp_path: Path) -> None:
    def main() -> None:
        client, server = client_context(NATIVE), server_context(NATIVE, tmp_path)
        refs = []
        for _ in range(3):
            with tls_pair(client, server) as (ours, theirs):
                ours.sendall(b"x")
                assert theirs.recv(1) == b"x"
                refs += [weakref.ref(ours), weakref.ref(theirs)]
        del ours, theirs
        assert not [each for each in refs if each() is not None]

        # A circle through the callback is found by the collector.
        def make() -> weakref.ref[Any]:
            kept: list[Any] = []
            context = server_context(NATIVE, tmp_path)
            context.sni_callback = lambda *_: kept.clear()
            left, right = bare_pair(client, context)
            kept.append(right)
            left.close()
            right.close()
            return weakref.ref(right)

        ref = make()
        gc.collect()
        assert ref() is None

    run(main)


def test_an_unclosed_connection_warns(tmp_path: Path) -> None:
    def main() -> None:
        left, right = bare_pair(client_context(NATIVE), server_context(NATIVE, tmp_path))
        number = right.fileno()
        with pytest.warns(ResourceWarning, match="unclosed <runloom.tls.TLSSocket"):
            del right
            gc.collect()
        with pytest.raises(OSError):
            os.fstat(number)
        left.close()

    run(main)


def test_the_types_can_not_be_made_by_hand() -> None:
    for kind in (runloom.tls.TLSSocket, runloom.tls.TLSSession):
        with pytest.raises(TypeError):
            kind()
        with pytest.raises(TypeError):
            type("Sub", (kind,), {})


def test_a_plain_file_object_is_what_makefile_gives(tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(NATIVE), server_context(NATIVE, tmp_path)) as (ours, theirs):
            assert isinstance(ours.makefile("rb"), io.BufferedReader)
            with theirs.makefile("rwb") as both:
                both.write(b"line\n")
                both.flush()
            assert ours.recv(100) == b"line\n"

    run(main)


def test_plain_server_speaks_tls_in_a_thread(tmp_path: Path) -> None:
    stock = server_context(STOCK, tmp_path)

    def serve(conn: socket.socket) -> None:
        with stock.wrap_socket(conn, server_side=True) as tls:
            tls.sendall(read_exactly(tls, 100_000))
            tls.unwrap()

    def main(port: int) -> None:
        with sync.tls_connect("localhost", port, context=client_context(NATIVE)) as conn:
            data = os.urandom(100_000)
            conn.sendall(data)
            assert read_exactly(conn, len(data)) == data
            with conn.unwrap():
                pass

    with plain_server(serve) as port:
        run(lambda: main(port))
