"""The names of runloom 0.2 that are kept."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from fiber_support import LIMIT, run, until
from socket_support import failure, read_all

import runloom
import runloom.compat as compat
import runloom.sync as sync
import runloom_c
from runloom_c import Coro, TCPConn, serve


def test_one_function_under_three_names() -> None:
    assert runloom_c.serve is runloom.serve is sync.serve is compat.serve
    assert runloom_c.TCPConn is compat.TCPConn
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = runloom_c.nothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = runloom.nothing  # type: ignore[attr-defined]


def test_a_connection_of_the_old_kind() -> None:
    class Own(TCPConn):
        pass

    def main() -> None:
        listener = Own.listen("127.0.0.1", 0, 16, reuseport=True)
        port = listener.getsockname()[1]
        accepted = runloom_c.go(listener.accept)
        conn = Own.connect("127.0.0.1", port)
        other = accepted.join()
        assert type(conn) is type(other) is Own
        assert conn.family == socket.AF_INET
        assert not conn.closed
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn.send_all(b"x" * 100_000)
        assert conn.send(b"y") == 1
        conn.shutdown(socket.SHUT_WR)
        assert read_all(other) == b"x" * 100_000 + b"y"
        buffer = bytearray(3)
        other.send_all(b"abc")
        assert conn.recv_into(buffer) == 3
        conn.close()
        assert conn.closed
        assert conn.fileno() == -1
        other.close()
        listener.close()

    run(main)


def test_serve() -> None:
    def main() -> None:
        def echo(conn: TCPConn) -> None:
            conn.send_all(conn.recv(100))

        port, listeners = serve("127.0.0.1", 0, echo)
        assert len(listeners) == 1
        for each in range(5):
            with sync.tcp_connect("127.0.0.1", port) as client:
                client.sendall(b"%d" % each)
                assert read_all(client) == b"%d" % each
        listeners[0].close()
        until(lambda: runloom_c.fiber_count() == 1)
        error = failure(sync.tcp_connect, "127.0.0.1", port)
        assert isinstance(error, ConnectionRefusedError)

    run(main)


def test_several_acceptors() -> None:
    def main() -> None:
        seen: list[int] = []

        def handler(conn: TCPConn) -> None:
            seen.append(1)
            conn.send_all(b"x")

        port, listeners = serve("127.0.0.1", 0, handler, acceptors=3, backlog=10)
        assert {each.getsockname()[1] for each in listeners} == {port}
        for _ in range(10):
            with sync.tcp_connect("127.0.0.1", port) as client:
                assert client.recv(1) == b"x"
        assert len(seen) == 10
        for each in listeners:
            each.close()

    run(main)


def test_a_handler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: reports.append(each.exc_value))

    def main() -> None:
        port, (listener,) = serve("127.0.0.1", 0, lambda conn: 1 / 0)
        for _ in range(2):  # it ends its own connection, and nothing else
            with sync.tcp_connect("127.0.0.1", port) as client:
                assert client.recv(1) == b""
        listener.close()

    run(main)
    assert [type(each) for each in reports] == [ZeroDivisionError] * 2


def test_arguments_of_serve() -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="callable"):
            serve("127.0.0.1", 0, None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="acceptors"):
            serve("127.0.0.1", 0, print, acceptors=0)
        with sync.tcp_listen("127.0.0.1", 0) as taken, pytest.raises(OSError):
            serve("127.0.0.1", taken.getsockname()[1], print)

    run(main)


def test_a_coro_runs_in_steps() -> None:
    def main() -> None:
        def count(coro: Coro[str]) -> str:
            got = [coro.suspend(each) for each in range(3)]
            return f"returned {got}"

        coro = Coro(count)
        assert not coro.done
        assert coro.resume("ignored") == 0
        assert coro.resume("a") == 1
        assert coro.resume("b") == 2
        assert coro.resume("c") == "returned ['a', 'b', 'c']"
        assert coro.done
        with pytest.raises(RuntimeError, match="done"):
            coro.resume()

    run(main)


def test_a_coro_that_fails_or_waits() -> None:
    def main() -> None:
        def fail(coro: Coro[None]) -> None:
            coro.suspend()
            raise ZeroDivisionError

        failing = Coro(fail)
        failing.resume()
        with pytest.raises(ZeroDivisionError):
            failing.resume()
        assert failing.done
        waiting = Coro[str](lambda coro: (sync.sleep(0.001), "waited")[1])
        assert waiting.resume() == "waited"
        busy = Coro[None](lambda coro: sync.sleep(LIMIT))
        resumer = runloom_c.go(busy.resume)
        sync.sleep(0.001)
        with pytest.raises(RuntimeError, match="running"):
            busy.resume()
        resumer.cancel()
        with pytest.raises(runloom.Cancelled):
            resumer.join()
        until(lambda: busy.done)
        unfinished = Coro(fail)
        unfinished.resume()
        with pytest.raises(RuntimeError, match="outside of the Coro"):
            unfinished.suspend()
        unfinished.close()
        assert unfinished.done
        unfinished.close()
        Coro(fail).close()

    run(main)
    with pytest.raises(RuntimeError, match="outside of a fiber"):
        Coro(lambda coro: None).resume()
    with pytest.raises(TypeError, match="callable"):
        Coro(None)  # type: ignore[arg-type]
