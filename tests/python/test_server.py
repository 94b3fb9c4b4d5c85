"""Server: the C++ Server with handlers in Python."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import ssl
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fiber_support import LIMIT, output, run, script, until
from socket_support import parked_on, read_all, reset
from tls_support import BOTH, NATIVE, client_context, server_context

import runloom
import runloom.sync as sync
import runloom_c

HUGE = 1e9


def echo(conn: Any) -> None:
    while data := conn.recv(65536):
        conn.sendall(data)


@contextmanager
def serving(handler: Callable[[Any], object], **options: Any) -> Iterator[tuple[Any, Any]]:
    """A server that serves, and where; it is stopped at the end."""
    server = sync.Server(handler, **options)
    address = server.listen("127.0.0.1", 0)
    serve = sync.fiber(server.serve, signals=None)
    try:
        yield server, address
    finally:
        server.stop()
        serve.join(LIMIT)


@contextmanager
def client_of(address: Any) -> Iterator[sync.Socket]:
    with sync.tcp_connect(*address, timeout=LIMIT) as conn:
        conn.settimeout(LIMIT)
        yield conn


def ask(address: Any, data: bytes = b"hello") -> bytes:
    """What it answers before it closes, if only by a reset because it has not read it all."""
    pieces = []
    with client_of(address) as conn:
        try:
            conn.sendall(data)
            conn.shutdown(socket.SHUT_WR)
            while piece := conn.recv(65536):
                pieces.append(piece)
        except OSError as error:
            assert error.errno in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE)
    return b"".join(pieces)


@contextmanager
def unraisable() -> Iterator[list[Any]]:
    """What goes to sys.unraisablehook."""
    seen: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, seen.append
    try:
        yield seen
    finally:
        sys.unraisablehook = before


# ---- serving ----


def test_serves_connections_at_the_same_time() -> None:
    def main() -> None:
        with serving(echo) as (server, address):
            replies = sync.gather(*(lambda i=i: ask(address, b"%d" % i) for i in range(20)))
            assert replies == [b"%d" % i for i in range(20)]
            stats = server.stats()
            assert (stats["accepted"], stats["faults"]["handler"]) == (20, 0)

    run(main)


def test_handlers_are_fibers_of_python() -> None:
    """With everything that those have: context variables, a handle, tracebacks, scopes."""
    seen: list[Any] = []

    def handle(conn: Any) -> None:
        own = runloom_c.current_g()
        seen.append((own.id in {f["id"] for f in runloom_c.fibers()}, type(own)))
        with runloom.timeout(HUGE):
            inner = sync.fiber(lambda: sync.sleep(0) or 5)
            seen.append(inner.join())
        seen.append(own.stack()[0][2])

    def main() -> None:
        with serving(handle) as (_, address):
            assert ask(address) == b""
        assert seen == [(True, runloom_c.G), 5, "handle"]

    run(main)


def test_a_connection_is_known() -> None:
    seen: list[Any] = []

    def handle(conn: Any) -> None:
        served = conn.served
        assert (served.peer, served.local) == (conn.getpeername(), conn.getsockname())
        assert (served.proxy, served.tlvs, served.listener) == (None, b"", 0)
        assert (served.expired, served.stopping) == (None, False)
        assert "peer=" in repr(served)
        seen.append(served)

    def main() -> None:
        with serving(handle) as (_, address), client_of(address) as conn:
            assert conn.served is None
            assert read_all(conn) == b""
        [served] = seen
        assert served.stopping
        with pytest.raises(RuntimeError, match="has ended"):
            served.await_request()

    run(main)


def test_several_listeners_and_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    came: list[tuple[int, Any]] = []

    def handle(conn: Any) -> None:
        came.append((conn.served.listener, conn.served.peer))
        echo(conn)

    def main() -> None:
        server = sync.Server(handle)
        first = server.listen("127.0.0.1", 0)
        second = server.listen("::1", 0)
        assert server.listen_unix(path, mode=0o600) == path
        assert server.addresses == [first, second, path]
        assert os.stat(path).st_mode & 0o777 == 0o600
        serve = sync.fiber(server.serve, signals=None)
        assert ask(first) == ask(second[:2]) == b"hello"
        with sync.unix_connect(path) as conn:
            conn.sendall(b"unix")
            conn.shutdown(socket.SHUT_WR)
            assert read_all(conn) == b"unix"
        server.stop()
        serve.join(LIMIT)
        assert [index for index, _ in came] == [0, 1, 2]
        assert not os.path.exists(path)

    run(main)


def test_a_listener_of_the_programs_own_is_taken_over() -> None:
    def main() -> None:
        listener = sync.tcp_listen("127.0.0.1", 0)
        server = sync.Server(echo)
        address = server.listen_on(listener)
        serve = sync.fiber(server.serve, signals=None)
        assert ask(address) == b"hello"
        assert listener.fileno() == -1
        server.stop()
        serve.join(LIMIT)

    run(main)


def test_files_over_a_connection_do_not_keep_it_open() -> None:
    kept: list[Any] = []

    def handle(conn: Any) -> None:
        file = conn.makefile("rwb")
        kept.append(file)
        file.write(file.readline())
        file.flush()

    def main() -> None:
        with serving(handle) as (_, address), client_of(address) as conn:
            conn.sendall(b"line\n")
            assert read_all(conn) == b"line\n"

    run(main)


# ---- what goes wrong ----


def test_what_a_handler_raises_ends_its_connection_only() -> None:
    reports: list[sync.ServerReport] = []

    def handle(conn: Any) -> None:
        if conn.recv(1) == b"x":
            raise ValueError("bad request")
        conn.sendall(b"fine")

    def main() -> None:
        with serving(handle, report=reports.append) as (server, address):
            assert ask(address, b"x") == b""
            assert ask(address, b"y") == b"fine"
            assert server.stats()["faults"]["handler"] == 1
        [report] = reports
        assert (report.fault, report.text) == ("handler", "ValueError: bad request")
        assert isinstance(report.error, ValueError)
        assert report.peer is not None and report.left_out == 0

    run(main)


def test_without_a_report_the_exception_is_told_by_unraisablehook() -> None:
    def handle(conn: Any) -> None:
        raise ValueError("bad request")

    def main() -> None:
        with unraisable() as seen, serving(handle) as (_, address):
            assert ask(address) == b""
        [told] = seen
        assert told.object is handle
        assert isinstance(told.exc_value, ValueError)

    run(main)


def test_a_report_that_raises_ends_nothing() -> None:
    def handle(conn: Any) -> None:
        raise ValueError("bad request")

    def report(_: Any) -> None:
        raise KeyError("report")

    def main() -> None:
        with unraisable() as seen, serving(handle, report=report) as (_, address):
            assert ask(address) == b""
            assert ask(address) == b""
        assert [type(told.exc_value) for told in seen] == [KeyError]

    run(main)


@pytest.mark.parametrize("how", ["reset", "timeout"])
def test_that_a_connection_failed_is_no_fault(how: str) -> None:
    """Its OSError may come out of the handler; another one may not."""
    reports: list[sync.ServerReport] = []

    def handle(conn: Any) -> None:
        if how == "timeout":
            conn.settimeout(0.001)
        conn.recv(1)

    def main() -> None:
        with serving(handle, report=reports.append) as (server, address):
            with client_of(address) as conn:
                until(lambda: server.stats()["active"] == 1)
                if how == "reset":
                    reset(conn)
                until(lambda: server.stats()["active"] == 0)
            assert server.stats()["faults"]["handler"] == 0
        assert reports == []

    run(main)


def test_an_oserror_of_something_else_is_a_fault() -> None:
    reports: list[sync.ServerReport] = []

    def handle(conn: Any) -> None:
        raise ConnectionRefusedError("the data base")

    def main() -> None:
        with serving(handle, report=reports.append) as (_, address):
            assert ask(address) == b""
        assert [report.text for report in reports] == ["ConnectionRefusedError: the data base"]

    run(main)


def test_the_use_of_what_the_handler_has_closed_is_a_fault() -> None:
    reports: list[sync.ServerReport] = []

    def handle(conn: Any) -> None:
        conn.close()
        conn.recv(1)

    def main() -> None:
        with serving(handle, report=reports.append) as (_, address):
            assert ask(address) == b""
        [report] = reports
        assert isinstance(report.error, OSError)
        assert report.error.errno == errno.EBADF

    run(main)


# ---- limits ----


def test_at_the_limit_clients_wait() -> None:
    running = most = 0

    def handle(conn: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        echo(conn)
        running -= 1

    def main() -> None:
        with serving(handle, max_connections=2) as (_, address):
            assert sync.gather(*(lambda: ask(address) for _ in range(10))) == [b"hello"] * 10
        assert most == 2

    run(main)


def test_over_the_limit_connections_are_rejected() -> None:
    def main() -> None:
        with (
            serving(echo, max_connections=1, reject_over_limit=True) as (server, address),
            client_of(address) as first,
        ):
            until(lambda: server.stats()["active"] == 1)
            with client_of(address) as second:
                assert read_all(second) == b""
            assert server.stats()["rejected"] == 1
            first.sendall(b"on")
            assert first.recv(10) == b"on"

    run(main)


def test_a_peer_has_its_own_limit() -> None:
    def main() -> None:
        with (
            serving(echo, max_connections_per_peer=1) as (server, address),
            client_of(address),
        ):
            until(lambda: server.stats()["active"] == 1)
            with client_of(address) as second:
                assert read_all(second) == b""
            assert server.stats()["rejected_peers"] == 1

    run(main)


# ---- deadlines of requests ----

PHASES = {
    "first_byte": b"",
    "idle": b"GET\n",
    "head": b"G",
    "body": b"POST\n12",
}


def requests(conn: Any) -> None:
    """A line is a head; that of POST has a body of ten bytes; each is answered by OK."""
    served = conn.served
    with conn.makefile("rb", buffering=0) as file:
        while True:
            served.await_request()
            head = file.readline()
            if not head:
                return
            served.head_done()
            if head == b"POST\n":
                body = b""
                while len(body) < 10:
                    body += file.read(10 - len(body))
            conn.sendall(b"OK")


@pytest.mark.parametrize("tls", [None, *BOTH])
@pytest.mark.parametrize("phase", list(PHASES))
def test_a_slow_client_is_cut_off(phase: str, tls: str | None, tmp_path: Path) -> None:
    ended: list[tuple[Any, BaseException]] = []

    def handle(conn: Any) -> None:
        try:
            requests(conn)
        except BaseException as error:
            ended.append((conn.served.expired, error))
            raise

    def main() -> None:
        times = dict.fromkeys(PHASES, HUGE) | {phase: 0.05}
        timeouts = sync.ServerTimeouts(**times, least_rate=0)
        context = tls and server_context(tls, tmp_path)
        with (
            serving(handle, timeouts=timeouts, context=context) as (server, address),
            client_of(address) as plain,
        ):
            conn: Any = plain
            if tls:
                conn = plain.start_tls(client_context(tls), server_hostname="localhost")
                conn.settimeout(LIMIT)
            begin = time.monotonic()
            if PHASES[phase]:
                conn.sendall(PHASES[phase])
            data = b""
            with pytest.raises(ssl.SSLError) if tls else _nothing():
                data = read_all(conn)
            assert data in (b"", b"OK")
            assert time.monotonic() - begin >= 0.045
            assert server.stats()["timeouts"][phase] == 1
            conn.close()
        [(expired, error)] = ended
        assert expired == phase
        assert isinstance(error, TimeoutError)

    run(main)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def test_a_client_that_does_not_read_is_cut_off() -> None:
    def handle(conn: Any) -> None:
        conn.served.await_request()
        conn.recv(1)
        conn.sendall(bytes(64 * 1024 * 1024))

    def main() -> None:
        timeouts = sync.ServerTimeouts(write=0.05, least_rate=0)
        with serving(handle, timeouts=timeouts) as (server, address), client_of(address) as conn:
            conn.sendall(b"x")
            until(lambda: server.stats()["active"] == 0)
            assert server.stats()["timeouts"]["write"] == 1
            assert server.stats()["faults"]["handler"] == 0

    run(main)


def test_requests_go_on_as_long_as_they_are_in_time() -> None:
    def main() -> None:
        with serving(requests) as (_, address), client_of(address) as conn:
            for _ in range(3):
                conn.sendall(b"GET\n")
                assert conn.recv(10) == b"OK"
            conn.sendall(b"POST\n0123456789")
            assert conn.recv(10) == b"OK"

    run(main)


# ---- the stop ----


def test_a_stop_lets_handlers_end() -> None:
    def main() -> None:
        with serving(echo) as (server, address):
            conn = sync.tcp_connect(*address)
            conn.sendall(b"1")
            assert conn.recv(1) == b"1"
            stopping = sync.fiber(server.stop, None)
            until(lambda: refused(address))
            conn.sendall(b"2")
            assert conn.recv(1) == b"2"
            assert not stopping.done
            conn.close()
            stopping.join(LIMIT)
            assert server.stats()["cancelled"] == 0

    run(main)


def refused(address: Any) -> bool:
    try:
        sync.tcp_connect(*address).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_stop_cancels_what_has_not_ended() -> None:
    ended: list[BaseException] = []

    def handle(conn: Any) -> None:
        try:
            conn.recv(1)
        except BaseException as error:
            ended.append(error)
            raise

    def main() -> None:
        with serving(handle) as (server, address), client_of(address) as conn:
            until(lambda: server.stats()["active"] == 1)
            server.stop(0.001)
            assert read_all(conn) == b""
            assert server.stats()["cancelled"] == 1
        assert [type(error) for error in ended] == [runloom.Cancelled]

    run(main)


def test_a_handler_that_shields_itself_loses_its_connection() -> None:
    ended: list[BaseException] = []

    def handle(conn: Any) -> None:
        with runloom.shield():
            try:
                conn.recv(1)
            except OSError as error:
                ended.append(error)

    def main() -> None:
        with serving(handle, cancel_grace=0.001) as (server, address), client_of(address):
            until(lambda: server.stats()["active"] == 1)
            server.stop()
            assert server.stats()["closed_at_stop"] == 1
        assert len(ended) == 1

    run(main)


@pytest.mark.parametrize("tls", [None, *BOTH])
def test_who_waits_for_a_further_request_is_told(tls: str | None, tmp_path: Path) -> None:
    ended: list[BaseException] = []

    def handle(conn: Any) -> None:
        try:
            requests(conn)
        except OSError as error:
            ended.append(error)
            raise

    def main() -> None:
        context = tls and server_context(tls, tmp_path)
        with serving(handle, context=context) as (server, address), client_of(address) as plain:
            conn: Any = plain
            if tls:
                conn = plain.start_tls(client_context(tls), server_hostname="localhost")
                conn.settimeout(LIMIT)
            conn.sendall(b"GET\n")
            assert conn.recv(10) == b"OK"
            server.stop(None)
            assert server.stats()["cancelled"] == 0
            conn.close()
        assert [type(error) for error in ended] == [ConnectionAbortedError]

    run(main)


@pytest.mark.parametrize("policy", ["serve", "refuse"])
def test_the_backlog_at_a_stop(policy: str) -> None:
    """Who is connected as far as he knows is served, or refused."""

    def main() -> None:
        server = sync.Server(echo, max_connections=1, backlog_at_stop=policy)
        address = server.listen("127.0.0.1", 0)
        serve = sync.fiber(server.serve, signals=None)
        with client_of(address) as first, client_of(address) as second, client_of(address) as third:
            until(lambda: server.stats()["active"] == 1)
            server.begin_stop(None)
            # The second one may have been accepted already, and wait for its turn.
            served = (first, second, third) if policy == "serve" else (first,)
            for each in served:
                each.sendall(b"x")
                assert each.recv(1) == b"x"
                each.close()
            if policy == "refuse":
                until(lambda: serve.done or server.stats()["active"] == 0)
                with pytest.raises(ConnectionResetError):
                    third.recv(1)
        serve.join(LIMIT)

    run(main)


def test_stopped_before_it_served() -> None:
    def main() -> None:
        server = sync.Server(echo)
        address = server.listen("127.0.0.1", 0)
        server.stop()
        server.serve(signals=None)
        assert refused(address)
        with pytest.raises(RuntimeError, match=r"serve\(\) after serve\(\)"):
            server.serve()

    run(main)


def test_close_of_a_server_that_was_not_served() -> None:
    with sync.Server(echo) as server:
        address = server.listen("127.0.0.1", 0)
    assert run(lambda: refused(address))


def test_who_serves_may_be_cancelled() -> None:
    def main() -> None:
        server = sync.Server(echo)
        address = server.listen("127.0.0.1", 0)
        serve = sync.fiber(server.serve, signals=None)
        with client_of(address) as conn:
            until(lambda: server.stats()["active"] == 1)
            serve.cancel()
            with pytest.raises(runloom.Cancelled):
                serve.join(LIMIT)
            assert read_all(conn) == b""

    run(main)


def test_serve_needs_a_fiber() -> None:
    with sync.Server(echo) as server:
        server.listen("127.0.0.1", 0)
        with pytest.raises(RuntimeError, match="outside of a fiber"):
            server.serve()


def test_serve_without_a_listener_waits_for_the_stop() -> None:
    def main() -> None:
        server = sync.Server(echo)
        serve = sync.fiber(server.serve, signals=None)
        sync.sleep(0.001)
        assert not serve.done
        server.stop()
        serve.join(LIMIT)

    run(main)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_it(number: int) -> None:
    before = signal.getsignal(number)

    def main() -> None:
        server = sync.Server(echo)
        address = server.listen("127.0.0.1", 0)
        serve = sync.fiber(server.serve, drain=None)
        with client_of(address) as conn:
            until(lambda: server.stats()["active"] == 1)
            os.kill(os.getpid(), number)
            until(lambda: refused(address))
            conn.sendall(b"x")
            assert conn.recv(1) == b"x"
            os.kill(os.getpid(), number)  # the second one: at once
            assert read_all(conn) == b""
        serve.join(LIMIT)

    run(main)
    assert signal.getsignal(number) is before


def test_a_keyboard_interrupt_in_a_handler_reaches_the_program() -> None:
    """Of the signal; another one is a fault as any other."""
    reports: list[sync.ServerReport] = []

    def handle(conn: Any) -> None:
        if conn.recv(1) == b"x":
            raise KeyboardInterrupt("own")
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass

    def main() -> None:
        server = sync.Server(handle, report=reports.append)
        address = server.listen("127.0.0.1", 0)
        sync.fiber(server.serve, signals=None)
        ask(address, b"x")
        assert [report.text for report in reports] == ["KeyboardInterrupt: own"]
        ask(address, b"y")
        sync.sleep(LIMIT)

    # A shell that starts the tests in the background has the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(main)
    finally:
        signal.signal(signal.SIGINT, before)


# ---- TLS ----


@pytest.mark.parametrize("kind", BOTH)
def test_tls(kind: str, tmp_path: Path) -> None:
    seen: list[Any] = []

    def handle(conn: Any) -> None:
        seen.append((conn.version(), conn.served.peer))
        echo(conn)

    def main() -> None:
        with serving(handle, context=server_context(kind, tmp_path)) as (server, address):
            with sync.tls_connect(
                address[0], address[1], context=client_context(kind), timeout=LIMIT
            ) as conn:
                conn.sendall(b"secret")
                assert conn.recv(10) == b"secret"
                assert seen == [("TLSv1.3", conn.getsockname())]
            assert server.stats()["handshakes"] == 1

    run(main)


@pytest.mark.parametrize("kind", BOTH)
def test_a_handshake_that_fails_is_reported(kind: str, tmp_path: Path) -> None:
    reports: list[sync.ServerReport] = []

    def main() -> None:
        context = server_context(kind, tmp_path)
        with serving(echo, context=context, report=reports.append) as (server, address):
            with client_of(address) as conn:
                conn.sendall(b"GET / HTTP/1.0\r\n\r\n")
                read_all(conn)
            until(lambda: server.stats()["active"] == 0)
            assert server.stats()["faults"]["handshake"] == 1
        [report] = reports
        assert report.fault == "handshake"
        assert isinstance(report.error, ssl.SSLError)

    run(main)


def test_handshakes_that_fail_together_leave_nothing(tmp_path: Path) -> None:
    """Most of them are not reported, and what they raised is let go all the same."""

    def errors() -> int:
        gc.collect()
        return sum(isinstance(each, ssl.SSLError) for each in gc.get_objects())

    def main() -> None:
        context = server_context(NATIVE, tmp_path)
        with serving(echo, context=context, report=lambda _: None) as (server, address):
            clients = [sync.tcp_connect(*address) for _ in range(20)]
            until(lambda: server.stats()["active"] == 20)
            for client in clients:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            until(lambda: server.stats()["faults"]["handshake"] == 20)
            for client in clients:
                client.close()

    before = errors()
    run(main)
    assert errors() <= before


@pytest.mark.parametrize("kind", BOTH)
def test_a_handshake_is_bounded(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with (
            serving(
                echo,
                context=server_context(kind, tmp_path),
                timeouts=sync.ServerTimeouts(handshake=0.02),
            ) as (server, address),
            client_of(address) as conn,
        ):
            assert read_all(conn) == b""
            assert server.stats()["timeouts"]["handshake"] == 1
            assert server.stats()["faults"]["handshake"] == 0

    run(main)


def test_a_handler_may_start_tls_on_its_own(tmp_path: Path) -> None:
    context = server_context(NATIVE, tmp_path)
    kept: list[Any] = []

    def handle(conn: Any) -> None:
        assert conn.recv(20) == b"STARTTLS\n"
        conn.sendall(b"go\n")
        tls = conn.start_tls(context, server_side=True)
        kept.append(tls)
        tls.served.await_request()
        tls.sendall(tls.recv(10))

    def main() -> None:
        with serving(handle) as (_, address), client_of(address) as conn:
            conn.sendall(b"STARTTLS\n")
            assert conn.recv(3) == b"go\n"
            tls = conn.start_tls(client_context(NATIVE), server_hostname="localhost")
            tls.sendall(b"inside")
            assert tls.recv(10) == b"inside"
            # The server closes what the handler has left open.
            with pytest.raises(ssl.SSLEOFError):
                tls.recv(10)
            tls.close()
        kept.clear()

    run(main)


# ---- PROXY, linger, detach ----


def test_a_trusted_proxy_tells_who_the_client_is() -> None:
    seen: list[Any] = []

    def handle(conn: Any) -> None:
        served = conn.served
        seen.append((served.peer, served.local, served.proxy[0]))
        echo(conn)

    def main() -> None:
        with serving(handle, trusted_proxies=["127.0.0.0/8"]) as (server, address):
            head = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n"
            assert ask(address, head + b"rest") == b"rest"
            assert server.stats()["proxied"] == 1
        assert seen == [(("192.0.2.7", 4711), ("198.51.100.1", 443), "127.0.0.1")]

    run(main)


def test_untrusted_peers_are_closed() -> None:
    def main() -> None:
        with (
            serving(echo, trusted_proxies=["192.0.2.0/24"]) as (server, address),
            client_of(address) as conn,
        ):
            assert read_all(conn) == b""
            assert server.stats()["untrusted"] == 1

    run(main)


@pytest.mark.parametrize("tls", [None, *BOTH])
def test_t46_a_client_that_still_sends_reads_the_answer(tls: str | None, tmp_path: Path) -> None:
    def handle(conn: Any) -> None:
        conn.sendall(b"enough")

    def main() -> None:
        context = tls and server_context(tls, tmp_path)
        with (
            serving(handle, linger=LIMIT, linger_bytes=1 << 30, context=context) as (
                server,
                address,
            ),
            client_of(address) as plain,
        ):
            conn: Any = plain
            if tls:
                conn = plain.start_tls(client_context(tls), server_hostname="localhost")
                conn.settimeout(LIMIT)
            conn.sendall(bytes(1024 * 1024))
            assert read_all(conn) == b"enough"
            conn.close()
            until(lambda: server.stats()["active"] == 0)
            assert server.stats()["lingered"] == 1

    run(main)


def test_a_detached_descriptor_is_left_alone() -> None:
    numbers: list[int] = []

    def main() -> None:
        def handle(conn: Any) -> None:
            numbers.append(conn.detach())

        with serving(handle) as (server, address), client_of(address) as conn:
            until(lambda: numbers and server.stats()["active"] == 0)
            with socket.socket(fileno=numbers[0]) as kept:
                kept.sendall(b"still here")
            assert read_all(conn) == b"still here"

    run(main)


# ---- arguments, memory ----


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"timeouts": 5}, TypeError, "timeouts must be a ServerTimeouts"),
        ({"backlog": "x"}, TypeError, "backlog|str"),
        ({"backlog": -1}, ValueError, "backlog is out of range"),
        ({"max_connections": -1}, ValueError, "max_connections is out of range"),
        ({"ipv6_peer_prefix": 129}, ValueError, "ipv6_peer_prefix is out of range"),
        ({"trusted_proxies": "10.0.0.0/8"}, TypeError, "trusted_proxies"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, ValueError, "10.0.0.1/8"),
        ({"linger": 0}, ValueError, "linger must be positive"),
        ({"cancel_grace": float("nan")}, ValueError, "cancel_grace"),
        ({"backlog_at_stop": "drop"}, ValueError, "backlog_at_stop"),
        ({"context": 5}, TypeError, "context"),
        ({"report": 5}, TypeError, "report must be callable"),
        ({"timeouts": sync.ServerTimeouts(head=-1)}, ValueError, "head must be positive"),
        ({"timeouts": sync.ServerTimeouts(least_rate=-1)}, ValueError, "least_rate"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        sync.Server(echo, **options)


def test_bad_handler_and_listener() -> None:
    with pytest.raises(TypeError, match="handler must be callable"):
        sync.Server(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="listener must be"):
        sync.Server(echo).listen_on(5)  # type: ignore[arg-type]


def test_p04_a_server_in_a_circle_is_collected() -> None:
    class Application:
        def __init__(self) -> None:
            self.server = sync.Server(self.handle)

        def handle(self, conn: Any) -> None:
            echo(conn)

    def main() -> Any:
        application = Application()
        address = application.server.listen("127.0.0.1", 0)
        serve = sync.fiber(application.server.serve, signals=None)
        assert ask(address) == b"hello"
        application.server.stop()
        serve.join(LIMIT)
        return weakref.ref(application)

    gone = run(main)
    gc.collect()
    assert gone() is None


def test_a_stop_from_another_thread() -> None:
    def main() -> None:
        server = sync.Server(echo)
        server.listen("127.0.0.1", 0)
        serve = sync.fiber(server.serve, signals=None)
        runloom.blocking(server.begin_stop)
        serve.join(LIMIT)

    run(main)


def test_exit_while_it_serves() -> None:
    """The interpreter may end with a server that serves, and with connections."""
    assert (
        output(
            """
            import runloom.sync as sync

            def handle(conn):
                try:
                    conn.recv(1)
                finally:
                    print("ended")

            def main():
                server = sync.Server(handle)
                address = server.listen("127.0.0.1", 0)
                sync.fiber(server.serve)
                global conn
                conn = sync.tcp_connect(*address)
                while not server.stats()["active"]:
                    sync.yield_now()
                sync.yield_now()
                raise SystemExit(0)

            sync.run(main)
            """
        )
        == "ended\n"
    )


@pytest.mark.parametrize(
    ("end", "code"), [("os._exit(7)", 7), ("return", 0), ("raise ValueError('child')", 0)]
)
def test_K02_a_handler_may_fork(end: str, code: int) -> None:
    """The child has this fiber alone, and ends when that does; the parent serves on."""
    done = script(
        f"""
        import os, warnings
        import runloom, runloom.sync as sync

        warnings.simplefilter("ignore")  # of fork() in a process with threads

        def handle(conn):
            pid = os.fork()
            if pid == 0:
                {end}
            _, status = runloom.blocking(os.waitpid, pid, 0)
            conn.sendall(b"%d" % os.waitstatus_to_exitcode(status))

        def main():
            server = sync.Server(handle)
            address = server.listen("127.0.0.1", 0)
            serving = sync.fiber(server.serve)
            for _ in range(2):
                with sync.tcp_connect(*address) as conn:
                    print(conn.recv(10), os.getpid() == parent, flush=True)
            server.stop()
            serving.join()

        parent = os.getpid()
        sync.run(main)
        """
    )
    assert done.returncode == 0, done
    assert done.stdout == f"{str(code).encode()!r} True\n" * 2


def test_s20_many_connections_leave_nothing() -> None:
    def main() -> None:
        with serving(echo) as (server, address):
            for _ in range(10):
                sync.gather(*(lambda: ask(address) for _ in range(50)))
            until(lambda: server.stats()["active"] == 0)
            files = len(os.listdir("/proc/self/fd"))
            sync.gather(*(lambda: ask(address) for _ in range(50)))
            until(lambda: server.stats()["active"] == 0)
            assert len(os.listdir("/proc/self/fd")) == files

    run(main)


def test_a_reader_of_another_fiber_is_within_the_deadlines_too() -> None:
    """The fiber that reads may not be the handler's; when the handler ends it is cut off."""
    ended: list[BaseException | None] = []

    def handle(conn: Any) -> None:
        conn.served.await_request()

        def read() -> None:
            try:
                conn.recv(1)
            except OSError as error:
                ended.append(error)

        reader = sync.fiber(read)
        parked_on(conn)
        assert not reader.done

    def main() -> None:
        with serving(handle) as (_, address), client_of(address) as conn:
            assert read_all(conn) == b""
            until(lambda: ended)

    run(main)
