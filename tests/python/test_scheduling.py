"""What a switch must not lose or mix up, and who gets his turn: as Python programs see it."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fiber_support import LIMIT, parked, run, run_all, script
from socket_support import listener, pair

import runloom
import runloom.sync
import runloom_c
from runloom_c import CancelScope, current_g, go, sched_yield

pytestmark = pytest.mark.version_sensitive
FULL = bool(os.environ.get("RUNLOOM_FULL"))


# ---------------------------------------------------------------- no wakeup is lost


def test_S02_an_end_right_behind_the_data_is_seen() -> None:
    """The data and the end come at any moment: before, between and after the read and the wait."""
    rounds = 20_000 if FULL else 1_500
    chosen = random.Random(2)

    def send(peer: socket.socket, pieces: list[bytes], pause: int) -> None:
        for piece in pieces:
            peer.sendall(piece)
            for _ in range(pause):
                pass
        peer.close()

    def main() -> None:
        for _ in range(rounds):
            ours, theirs = socket.socketpair()
            sizes = [chosen.choice((1, 10, 4096)) for _ in range(chosen.choice((0, 1, 2)))]
            pieces = [bytes(size) for size in sizes]
            thread = threading.Thread(
                target=send, args=(theirs, pieces, chosen.choice((0, 0, 100, 1000)))
            )
            with runloom.sync.Socket(fileno=ours.detach()) as sock:
                sock.settimeout(LIMIT)
                thread.start()
                got = 0
                while piece := sock.recv(64 * 1024):
                    got += len(piece)
                assert got == sum(sizes)
            thread.join()

    run(main)


def test_S03_a_deadline_that_is_moved_while_the_read_begins() -> None:
    rounds = 1_000_000 if FULL else 20_000

    def main() -> None:
        with pair() as (ours, _):
            scopes: list[CancelScope] = []

            def read() -> int:
                late = 0
                for _ in range(rounds):
                    with CancelScope(timeout=LIMIT) as scope:
                        scopes.append(scope)
                        ours.recv(1)
                    late += scope.cancelled_caught
                return late

            reader = go(read)
            while not reader.done:
                if scopes:
                    scopes.pop().deadline = time.monotonic() - 1
                sched_yield()
            assert reader.result == rounds

    run(main)


def test_S03_a_deadline_that_is_moved_back_counts_anew() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            scopes: list[CancelScope] = []

            def read() -> bytes:
                with CancelScope(timeout=LIMIT) as scope:
                    scopes.append(scope)
                    return ours.recv(1)
                return b"late"  # type: ignore[unreachable]

            reader = go(read)
            parked(reader)
            scopes[-1].deadline = time.monotonic() + 1
            scopes[-1].deadline = time.monotonic() + LIMIT
            runloom_c.sched_sleep(0.01)
            assert not reader.done
            peer.sendall(b"x")
            assert reader.join() == b"x"
            # What has ended stays ended, though the fiber has not run since.
            reader = go(read)
            parked(reader)
            scopes[-1].deadline = time.monotonic()
            scopes[-1].deadline = time.monotonic() + LIMIT
            assert scopes[-1].cancel_called
            assert reader.join() == b"late"
            reader = go(read)
            parked(reader)
            scopes[-1].deadline = time.monotonic() + 2 * LIMIT
            scopes[-1].deadline = time.monotonic() + 0.005
            assert reader.join() == b"late"

    run(main)


# ---------------------------------------------------------------- what belongs to a fiber


def test_S06_errors_and_the_current_fiber_are_the_own_ones() -> None:
    """Each fails in its own way, again and again, beside the others."""
    errno_of_c = ctypes.CDLL(None, use_errno=False)

    def refused() -> None:
        with runloom.sync.Socket() as sock:
            sock.connect(("127.0.0.1", 1))

    def closed() -> None:
        runloom_c.wait_fd(1_000_000, 1, 1)

    def missing() -> None:
        runloom_c.blocking(os.open, "/nonexistent", os.O_RDONLY)

    def directly() -> None:
        sched_yield()
        os.listdir("/dev/null")

    def late() -> None:
        reader, writer = os.pipe()
        try:
            runloom_c.sched_sleep(0.0001)
            os.lseek(reader, 0, os.SEEK_SET)
        finally:
            os.close(reader)
            os.close(writer)

    def worker(fails: Callable[[], None], number: int) -> None:
        me = current_g()
        for _ in range(100):
            with pytest.raises(OSError) as caught:
                fails()
            assert caught.value.errno == number
            assert current_g() is me
            assert errno_of_c.getpid() == os.getpid()

    kinds = [
        (refused, errno.ECONNREFUSED), (closed, errno.EBADF), (missing, errno.ENOENT),
        (directly, errno.ENOTDIR), (late, errno.ESPIPE),
    ]  # fmt: skip
    run_all(*[lambda each=each: worker(*each) for each in kinds * 3])  # type: ignore[misc]


def test_S07_switches_inside_handlers_and_while_unwinding() -> None:
    rounds = 100_000
    fibers = 20

    class Guard:
        def __init__(self, log: list[int]) -> None:
            self.log = log

        def __enter__(self) -> None:
            sched_yield()

        def __exit__(self, kind: Any, error: BaseException, trace: Any) -> None:
            self.log[0] += 1
            expected = error.args
            sched_yield()  # while it unwinds
            assert sys.exc_info()[1] is error
            assert error.args == expected

        def __del__(self) -> None:
            sched_yield()  # in a destructor that the unwinding calls
            self.log[1] += 1

    def work(n: int) -> list[int]:
        log = [0, 0]
        for i in range(rounds // fibers):
            try:
                with Guard(log):
                    if i % 2:
                        raise KeyError(n, i)
                    # Raised by C++ code that has parked.
                    runloom_c.blocking if i % 500 else runloom_c.blocking(int)
                    raise ValueError(n, i)
            except (KeyError, ValueError) as error:
                sched_yield()
                assert error.args == (n, i)
                assert error.__context__ is None
        assert sys.exc_info() == (None, None, None)
        return log

    logs = run_all(*[lambda n=n: work(n) for n in range(fibers)])  # type: ignore[misc]
    assert logs == [[rounds // fibers] * 2] * fibers


def test_S16_the_rounding_mode_is_the_fibers() -> None:
    libm = ctypes.CDLL("libm.so.6")
    upward, nearest = 0x800, 0
    one, tiny = 1.0, 2.0**-60

    def rounds_up() -> int:
        libm.fesetround(upward)
        seen = 0
        for _ in range(100):
            sched_yield()
            assert libm.fegetround() == upward
            seen += one + tiny > 1.0
        libm.fesetround(nearest)
        return seen

    def computes() -> int:
        seen = 0
        for _ in range(100):
            sched_yield()
            assert libm.fegetround() == nearest
            seen += one + tiny > 1.0
        return seen

    assert run_all(rounds_up, computes, computes, rounds_up) == [100, 0, 0, 100]
    assert one + tiny == 1.0


# ---------------------------------------------------------------- the end of a scheduler


def test_S08_the_end_cancels_every_wait_and_runs_each_guard_once() -> None:
    guards: list[str] = []
    lock = runloom_c.Lock()
    lock.acquire()

    def main() -> None:
        runloom_c.set_deadlock_mode(0)
        with pair() as (ours, _):
            waits: dict[str, Callable[[], object]] = {
                "park": runloom_c.park_self,
                "sleep": lambda: runloom_c.sched_sleep(LIMIT),
                "channel": runloom_c.Chan[int]().recv,
                "lock": lock.acquire,
                "socket": lambda: ours.recv(1),
                "event": lambda: runloom_c.Event().wait(),
                "select": lambda: runloom_c.select([("recv", runloom_c.Chan())]),
            }

            def work(name: str) -> None:
                try:
                    with CancelScope():
                        waits[name]()
                finally:
                    guards.append(name)

            fibers = {name: go(lambda name=name: work(name)) for name in waits}  # type: ignore[misc]
            parked(*fibers.values())
            for each in fibers.values():
                each.cancel()
            for each in fibers.values():
                with pytest.raises(runloom_c.Cancelled):
                    each.join()
            assert sorted(guards) == sorted(waits)

    run(main)
    # And when nobody cancels them: the reset of the thread's scheduler.
    guards.clear()

    def stays(n: int) -> None:
        try:
            runloom_c.park_self()
        finally:
            guards.append(str(n))

    runloom_c.set_deadlock_mode(0)
    for n in range(100):
        go(lambda n=n: stays(n))  # type: ignore[misc]
    runloom_c.run()
    assert guards == []
    runloom_c.sched_reset()
    assert sorted(guards, key=int) == [str(n) for n in range(100)]
    assert runloom_c.fiber_count() == 0


# ---------------------------------------------------------------- what a system allows


def test_S12_more_fibers_than_the_system_has_maps_for() -> None:
    """Guards by mprotect take two maps a fiber; the error names the limit, and work goes on."""
    code = """
        import runloom_c
        runloom_c.set_deadlock_mode(0)
        error = None
        def main():
            global error
            made = []
            try:
                while len(made) < 100_000:
                    made.append(runloom_c.go(runloom_c.park_self))
                    if len(made) % 1000 == 0:
                        runloom_c.sched_yield()  # a fiber gets its stack when it begins
            except BaseException as raised:
                error = raised
            runloom_c.sched_yield()
            failed = [g.error for g in made if g.error is not None]
            error = error or (failed[0] if failed else None)
            print(type(error).__name__, error)
            for g in made:
                g.cancel()
            for g in made:
                try: g.join()
                except BaseException: pass
            assert runloom_c.go(lambda: 7).join() == 7
            print("goes on")
        runloom_c._run_main(main)
    """
    done = script(code, environment={"RUNLOOM_GUARD": "mprotect"}, limit=60)
    assert done.returncode == 0, done
    first, last = done.stdout.splitlines()  # Python may report on stderr what found no memory
    with open("/proc/sys/vm/max_map_count") as file:
        if int(file.read()) < 200_000:
            assert "vm.max_map_count" in first, first
        else:
            assert first == "NoneType None"
    assert last == "goes on"


def test_S14_shadow_stacks() -> None:
    """Either they are followed, or the module does not ask for them; a return never faults."""
    code = """
        import runloom_c
        def deep(n):
            if n: return deep(n - 1)
            runloom_c.sched_yield()
            return 1
        gs = [runloom_c.go(lambda: deep(50)) for _ in range(50)]
        runloom_c.run()
        print(sum(g.result for g in gs))
    """
    tunables = "glibc.cpu.x86_shstk=permissive:glibc.cpu.hwcaps=SHSTK"
    done = script(code, environment={"GLIBC_TUNABLES": tunables})
    assert (done.returncode, done.stdout) == (0, "50\n"), done
    readelf = shutil.which("readelf")
    if readelf is not None:
        module = Path(runloom_c.__file__)
        notes = subprocess.run(
            [readelf, "-n", module], capture_output=True, text=True, check=True
        ).stdout
        assert "SHSTK" not in notes


def strace_works() -> bool:
    if shutil.which("strace") is None:
        return False
    done = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not strace_works(), reason="strace is not there, or may not trace")
@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"])
def test_T02_a_shortage_at_accept(name: str) -> None:
    """sync.accept() tells its caller; serve() waits and goes on."""
    accept = """
        import errno, runloom.sync
        def main():
            with runloom.sync.tcp_listen("127.0.0.1", 0) as listener:
                with runloom.sync.tcp_connect(*listener.getsockname()):
                    for _ in range(3):
                        try:
                            listener.accept()
                        except OSError as error:
                            print(errno.errorcode[error.errno])
                    listener.accept()[0].close()  # nothing was lost
        runloom.sync.run(main)
    """
    serve = """
        import runloom.sync, runloom_c
        def main():
            def answer(conn):
                conn.send_all(b"served")
            port, (listener,) = runloom_c.serve("127.0.0.1", 0, answer)
            with runloom.sync.tcp_connect("127.0.0.1", port) as client:
                print(client.recv(100).decode())
            listener.close()
        runloom.sync.run(main)
    """
    for code, expected in ((accept, f"{name}\n" * 3), (serve, "served\n")):
        done = subprocess.run(
            ["strace", "-f", "-q", "-o", "/dev/null", "-e", "trace=accept4",
             "-e", f"inject=accept4:error={name}:when=1..3",
             sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True, text=True, timeout=25, check=False,
            env={**os.environ, "RUNLOOM_NETPOLL": "epoll"},
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, expected), done


# ---------------------------------------------------------------- turns


def test_S04_timers_and_accepts_beside_a_fiber_that_never_waits() -> None:
    def main() -> None:
        over: list[str] = []

        def spin() -> None:
            while not over:
                sched_yield()

        def full() -> None:
            """Reads from a socket that always has something."""
            with pair() as (ours, peer):
                peer.setblocking(False)
                while not over:
                    try:
                        peer.send(bytes(1 << 16))
                    except BlockingIOError:
                        pass
                    ours.recv(100)

        go(spin), go(full)
        with listener() as server:
            accepted = go(lambda: server.accept())
            asleep = go(lambda: runloom_c.sched_sleep(0.05))
            parked(accepted, asleep)
            with socket.create_connection(server.getsockname()):
                accepted.join()[0].close()
                asleep.join()
        over.append("over")

    run(main)


def test_S28_a_storm_of_connections_takes_turns() -> None:
    """Echoes go on while hundreds of connections wait to be accepted: by order, not by time."""
    echoes, storm = 20, 400
    order: list[str] = []

    def echo(conn: Any) -> None:
        with conn:
            while data := conn.recv(100):
                order.append("echo")
                conn.sendall(data)

    def main() -> None:
        with listener(backlog=1024) as server:
            address = server.getsockname()
            peers = [socket.create_connection(address) for _ in range(echoes)]
            fibers = [go(lambda: echo(server.accept()[0])) for _ in peers]
            parked(*fibers)
            waiting = [socket.create_connection(address) for _ in range(storm)]
            for peer in peers:
                peer.sendall(b"x")

            def accept_all() -> None:
                for _ in range(storm):
                    server.accept()[0].close()
                    order.append("accept")

            acceptor = go(accept_all)
            acceptor.join()
            for peer in peers:
                assert peer.recv(1) == b"x"
            for peer in [*peers, *waiting]:
                peer.close()
            for fiber in fibers:
                fiber.join()

    run(main)
    assert order.count("accept") == storm
    before = order.index("echo")
    assert before <= 128, f"{before} accepts before the first echo"
    last = len(order) - 1 - order[::-1].index("echo")
    assert order[:last].count("accept") <= 256


def test_S24_who_keeps_the_thread_is_reported_once() -> None:
    code = """
        import time, runloom_c
        def hog():
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                pass
        def well_behaved():
            for _ in range(100):
                runloom_c.sched_yield()
        runloom_c.go(hog)
        runloom_c.go(well_behaved)
        runloom_c.run()
    """
    reported = script(code, environment={"RUNLOOM_STALL_MS": "50"})
    assert reported.returncode == 0, reported
    lines = reported.stderr.splitlines()
    assert sum("'hog' keeps hub" in line for line in lines) == 1, reported
    assert "well_behaved" not in reported.stderr
    # Its frames, which are those of the interpreter; not the watcher's.
    assert any("PyEval" in line or "Py_" in line for line in lines), reported
    assert "watch" not in reported.stderr.lower()
    # Longer than it takes, and off.
    for threshold in ("60000", "0"):
        quiet = script(code, environment={"RUNLOOM_STALL_MS": threshold})
        assert (quiet.returncode, quiet.stderr) == (0, ""), quiet
    assert script(code).stderr == ""
