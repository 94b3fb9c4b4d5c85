"""Programs that do what they should not: none may crash or hang the process, or corrupt it.

Most run in a process of their own, since a fault might end it.
"""

from __future__ import annotations

import array
import gc
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fiber_support import new_throws, output, run, script

import runloom_c
from runloom.sync import Socket
from runloom_c import go, sched_yield

pytestmark = pytest.mark.version_sensitive

FAR = 1 << 32  # what a C int can't hold, and what it would become 0 in


# ---------------------------------------------------------------- numbers out of range


def test_descriptors_and_flags_that_no_int_holds_are_refused() -> None:
    mine, peer = socket.socketpair()
    with mine, peer, Socket() as sock:
        fd = FAR + mine.fileno()
        for call in (
            lambda: Socket(fileno=fd),
            lambda: Socket(FAR + socket.AF_INET),
            lambda: Socket(socket.AF_INET, FAR + socket.SOCK_STREAM),
            lambda: Socket(socket.AF_INET, socket.SOCK_STREAM, FAR),
            lambda: sock.shutdown(FAR),
            lambda: sock.recv(1, FAR),
            lambda: runloom_c.tcp_send(mine, b"x", FAR),
            lambda: runloom_c.tcp_recv_alloc(mine, 1, FAR),
            lambda: runloom_c.dump_fibers(FAR + 2),
            lambda: runloom_c.wait_fd(mine, FAR + 1, 0),
            lambda: runloom_c.set_deadlock_mode(FAR),
        ):
            with pytest.raises(OverflowError):
                call()
        mine.sendall(b"still ours")
        assert peer.recv(100) == b"still ours"


def test_a_limit_of_frames_may_be_any_number() -> None:
    def main() -> None:
        g = go(runloom_c.park_self)
        sched_yield()
        assert g.stack(10**15) == g.stack() == []
        mine = runloom_c.current_g()
        assert mine is not None
        assert len(mine.stack(sys.maxsize)) == len(mine.stack(-FAR)) > 1
        assert mine.stack(0) == []
        g.wake()

    run(main)


@new_throws
def test_sizes_beyond_all_memory() -> None:
    with open(__file__, "rb") as file, Socket() as sock:
        content = file.read()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        assert runloom_c.fd_read(file.fileno(), 1 << 32) == content
        for size in (1 << 45, sys.maxsize):
            for call in (sock.recv, partial(runloom_c.fd_read, file.fileno()), runloom_c.Chan):
                with pytest.raises((MemoryError, OverflowError)):
                    call(size)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nonsense_as_arguments_of_everything(seed: int) -> None:
    program = Path(__file__).with_name("arguments_fuzz.py")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", program, str(seed), "5000"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done


# ---------------------------------------------------------------- what a call counts


@pytest.mark.parametrize("wrap", [lambda data: data, memoryview], ids=["array", "memoryview"])
def test_tcp_send_counts_bytes_not_items(wrap: Any) -> None:
    mine, peer = socket.socketpair()
    data = wrap(array.array("i", [1, 2, 3]))
    with peer, Socket(fileno=mine.detach()) as sock:
        assert runloom_c.tcp_send(sock, data) == 12
        assert len(peer.recv(100)) == 12


def test_addresses_of_unknown_families_are_bytes() -> None:
    with Socket(socket.AF_NETLINK, socket.SOCK_RAW) as sock:
        family, rest = sock.getsockname()
        assert (family, len(rest)) == (socket.AF_NETLINK, 10)
        assert "laddr=(16, b" in repr(sock)


# ---------------------------------------------------------------- calls back into it


class Callback:
    """An int whose conversion calls back."""

    def __init__(self, value: int, call: Any) -> None:
        self.value, self.call = value, call

    def __index__(self) -> int:
        self.call()
        return self.value


def test_a_constructor_that_is_entered_twice_makes_one_socket() -> None:
    sock = Socket.__new__(Socket)
    with pytest.raises(RuntimeError, match="already"):
        sock.__init__(Callback(int(socket.AF_INET), sock.__init__))  # type: ignore[misc, arg-type]
    number = sock.fileno()
    assert number >= 0
    sock.close()
    with pytest.raises(OSError):
        os.fstat(number)


@pytest.mark.parametrize(
    "show", [repr, lambda g: runloom_c.fiber_stack(g.id)], ids=["repr", "fiber_stack"]
)
def test_a_fiber_ends_while_its_function_is_shown(show: Any) -> None:
    class Ends:
        def __repr__(self) -> str:
            g.cancel()
            while not g.done:
                sched_yield()
            return "shown"

    def main() -> Any:
        nonlocal g
        g = go(partial(lambda *_: runloom_c.park_self(), Ends(), [1], Ends()))
        sched_yield()
        assert "shown, [1], shown" in str(show(g))

    g: Any = None
    run(main)


def test_values_that_use_the_channel_they_are_in() -> None:
    class Value:
        def __del__(self) -> None:
            for call in (
                channel.try_recv,
                partial(channel.try_send, object()),
                partial(runloom_c.select, [("recv", channel)], True),
                channel.close,
            ):
                try:
                    call()
                except ValueError:
                    pass
            nonlocal died
            died += 1

    died = 0
    channel: runloom_c.Chan[Any] = runloom_c.Chan(2)

    def main() -> None:
        channel.send(Value())
        channel.send(Value())
        channel.try_recv()

    run(main)
    assert died == 2


# ---------------------------------------------------------------- runs in runs


def test_a_nested_main_that_runs_another_is_waited_for() -> None:
    order: list[int] = []

    def level(n: int) -> None:
        if n > 0:
            assert runloom_c._run_main(partial(level, n - 1)) > 0
        order.append(n)

    run(partial(level, 20))
    assert order == list(range(21))


def test_what_the_innermost_main_raises_comes_out_of_each() -> None:
    passed: list[int] = []

    def level(n: int) -> None:
        if n == 0:
            raise ZeroDivisionError
        try:
            runloom_c._run_main(partial(level, n - 1))
        finally:
            passed.append(n)

    with pytest.raises(ZeroDivisionError):
        run(partial(level, 20))
    assert passed == list(range(1, 21))


def test_a_run_inside_the_collector_or_a_trace_function_is_refused() -> None:
    def refused(place: str) -> None:
        for call in (runloom_c.run, runloom_c.sched_reset, partial(runloom_c._run_main, int)):
            try:
                call()
                texts.append("it ran")
            except RuntimeError as error:
                texts.append(str(error))
        places.append(place)

    class Circle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            refused("collector")

    def trace(*_: Any) -> None:
        if not traced:
            traced.append(1)
            refused("trace")

    texts: list[str] = []
    places: list[str] = []
    traced: list[int] = []
    bystander = go(sched_yield)
    Circle()
    gc.collect()
    before = sys.gettrace()
    sys.settrace(trace)
    (lambda: None)()
    sys.settrace(before)
    assert places == ["collector", "trace"]
    assert all("a fiber can't wait inside" in text for text in texts), texts
    assert runloom_c.run() == 1
    assert bystander.error is None


# ---------------------------------------------------------------- threads


def test_calls_on_the_blocking_pool_may_run_fibers_again_and_again() -> None:
    def work() -> int:
        g = go(lambda: 7)
        assert runloom_c.run() == 1
        return g.join()

    def main() -> list[int]:
        return [runloom_c.blocking(work) for _ in range(20)]

    assert run(main) == [7] * 20


def test_fibers_are_listed_while_they_end_on_another_thread() -> None:
    code = """
        import gc, threading, time, runloom_c

        class Circle:
            def __init__(self): self.me = self
            def __del__(self): time.sleep(0)  # the other thread runs

        over = False
        def thread():
            def short(): runloom_c.sched_yield()
            while not over:
                for _ in range(50): runloom_c.go(short)
                runloom_c.run()

        other = threading.Thread(target=thread)
        other.start()
        gc.set_threshold(1)
        for _ in range(200):
            Circle()
            for fiber in runloom_c.fibers(): assert fiber["refcount"] >= 0
        over = True
        other.join()
        print("end")
    """
    assert output(code) == "end\n"


# ---------------------------------------------------------------- the interpreter's end


def test_an_end_without_the_module_threading() -> None:
    code = """
        import sys, runloom_c
        runloom_c.set_deadlock_mode(0)
        runloom_c.go(runloom_c.park_self)
        runloom_c.run()
        del sys.modules["threading"]
        print("end")
    """
    assert output(code) == "end\n"


def test_a_socket_that_is_left_open_does_not_disturb_the_end() -> None:
    code = """
        import runloom_c
        sock = runloom_c.Socket()
        print("end")
    """
    assert output(code) == "end\n"


def test_objects_that_use_fibers_when_a_thread_ends() -> None:
    code = """
        import threading, runloom_c
        runloom_c.set_deadlock_mode(0)
        local = threading.local()
        class Late:
            def __del__(self):
                runloom_c.sched_yield()
                try:
                    runloom_c.go(print)
                    runloom_c.run()
                except RuntimeError:
                    pass
        def thread():
            local.a = Late()
            def fiber():
                local.b = Late()
                runloom_c.park_self()
            runloom_c.go(fiber)
            runloom_c.run()
            local.c = [Late()]
        for _ in range(5):
            t = threading.Thread(target=thread)
            t.start()
            t.join()
        print(runloom_c.fiber_count())
    """
    assert output(code).split()[-1] == "0"


# ---------------------------------------------------------------- what a process runs out of


@new_throws
def test_without_memory_there_are_exceptions() -> None:
    code = """
        import gc, resource, runloom_c

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        most = used + (200 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        runloom_c.set_deadlock_mode(0)

        def often(count, call):
            for _ in range(count):
                try:
                    call()
                except (MemoryError, OSError, RuntimeError):
                    pass

        often(3_000, lambda: runloom_c.go(runloom_c.park_self))
        runloom_c.run()
        hoard = []
        for size in (1 << 20, 1 << 10):
            try:
                while True:
                    hoard.append(bytearray(size))
            except MemoryError:
                pass

        def everything():
            often(10, lambda: runloom_c.go(int))
            often(10, runloom_c.fibers)
            often(10, runloom_c.count_deadlocked)
            often(3, lambda: runloom_c.warmup(1_000))
            often(3, lambda: runloom_c.Chan(10**6))
            often(3, lambda: runloom_c.select([("recv", runloom_c.Chan())] * 10_000, True))
            often(3, lambda: runloom_c.Socket().connect(("localhost", 1)))
            often(3, lambda: runloom_c.blocking(len, ""))

        everything()
        often(1, lambda: runloom_c.go(everything))
        often(1, runloom_c.run)
        hoard.clear()
        gc.collect()
        runloom_c.sched_reset()
        print(runloom_c.fiber_count())
    """
    assert output(code) == "0\n"


def test_signals_reach_a_child_that_a_thread_forked() -> None:
    code = """
        import os, signal, threading, warnings, runloom, runloom_c
        warnings.simplefilter("ignore")

        def handler(*_): raise InterruptedError

        def child():
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                runloom.run(1, lambda: runloom_c.sched_sleep(20))
            except InterruptedError:
                os._exit(7)
            os._exit(0)

        def thread():
            runloom_c.go(int)
            runloom_c.run()
            if (pid := os.fork()) == 0:
                child()
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        other = threading.Thread(target=thread)
        other.start()
        other.join()
    """
    assert output(code) == "7\n"


# ---------------------------------------------------------------- all descriptors closed


def test_a_daemon_that_closes_all_descriptors_serves_on() -> None:
    code = """
        import os, runloom.sync as sync

        def echo():
            with sync.tcp_listen("127.0.0.1", 0) as listener:
                def serve():
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(connection.recv(100))
                sync.fiber(serve)
                with sync.tcp_connect(*listener.getsockname()) as client:
                    client.sendall(b"hello")
                    print(client.recv(100).decode())

        sync.run(echo)
        os.closerange(3, 2048)  # the poller's among them
        sync.run(echo)
    """
    done = script(code)
    assert (done.returncode, done.stdout) == (0, "hello\nhello\n"), done


def test_numbers_of_closed_descriptors_are_left_to_their_new_owners() -> None:
    code = """
        import os, socket, runloom.sync as sync

        sync.run(lambda: sync.sleep(0.001))
        os.closerange(3, 2048)  # the signal pipe among them
        pairs = [socket.socketpair() for _ in range(8)]
        for one, other in pairs:
            one.sendall(b"theirs")
            other.sendall(b"theirs")
        sync.run(lambda: sync.sleep(0.001))
        for pair in pairs:
            for end in pair:
                assert end.recv(100) == b"theirs"
        print("untouched")
    """
    done = script(code, limit=20.0)
    assert (done.returncode, done.stdout) == (0, "untouched\n"), done
