"""Signals and Ctrl-C, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from fiber_support import LIMIT, output, script

pytestmark = pytest.mark.version_sensitive

# What each program begins with.
HEAD = """
import os, signal, threading, time
import runloom, runloom.sync, runloom_c
from runloom_c import go

def later(seconds, number=signal.SIGINT):
    '''Sends us a signal, from a thread that is gone by then or not.'''
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()

def forever():
    # A sleep, because run() does not wait for fibers that only others can wake.
    while True:
        runloom_c.sched_sleep(30)
"""


def program(code: str) -> str:
    return HEAD + textwrap.dedent(code)


# Ways in which the main fiber waits when the interrupt comes.
WAITS = {
    "park": "runloom_c.park_self()",
    "sleep": "runloom_c.sched_sleep(30)",
    "receive": "runloom_c.Chan().recv()",
    "send": "runloom_c.Chan().send(1)",
    "select": "runloom_c.select([('recv', runloom_c.Chan())])",
    "lock": "lock = runloom_c.Lock(); lock.acquire(); lock.acquire()",
    "event": "runloom_c.Event().wait()",
    "condition": "c = runloom_c.Condition(); c.acquire(); c.wait()",
    "semaphore": "s = runloom_c.Semaphore(1); s.acquire(); s.acquire()",
    "join": "go(forever).join()",
    "nested run": "go(forever); runloom_c.run()",
    "socket": "s = runloom.sync.tcp_listen('127.0.0.1', 0); s.accept()",
    "wait_fd": "r, w = os.pipe(); runloom_c.wait_fd(r, 1)",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_an_interrupt_comes_out_of_whatever_main_waits_for(wait: str) -> None:
    code = f"""
        def main():
            go(lambda: runloom_c.sched_sleep(30))
            try:
                {wait}
            except KeyboardInterrupt:
                print("main")
                raise

        later(0.1)
        begin = time.monotonic()
        try:
            runloom.run(1, main)
        except KeyboardInterrupt:
            print("run", time.monotonic() - begin < {LIMIT}, runloom_c.fiber_count())
    """
    assert output(program(code)) == "main\nrun True 0\n"


def test_S10_every_fiber_unwinds() -> None:
    code = """
        def work(name):
            try:
                forever()
            finally:
                print("finally", name)

        def main():
            runloom.fiber(work, "a")
            runloom.fiber(work, "b")
            try:
                forever()
            finally:
                print("finally main")

        later(0.1)
        try:
            runloom.sync.run(main)
        except KeyboardInterrupt:
            print("interrupted")
    """
    lines = output(program(code)).splitlines()
    assert lines[0] == "finally main"
    assert lines[-1] == "interrupted"
    assert sorted(lines[1:-1]) == ["finally a", "finally b"]


def test_without_a_main_fiber_it_comes_out_of_run() -> None:
    code = """
        def work():
            try:
                forever()
            finally:
                print("finally")

        go(work)
        later(0.1)
        try:
            runloom_c.run()
        except KeyboardInterrupt:
            print("interrupted", runloom_c.fiber_count())
    """
    # What is left unwinds when the program ends.
    assert output(program(code)) == "interrupted 1\nfinally\n"


def test_after_the_end_of_main_it_comes_out_of_run_and_the_rest_unwinds() -> None:
    code = """
        def work():
            try:
                runloom_c.sched_sleep(30)
            finally:
                print("finally")

        later(0.1)
        try:
            runloom.run(1, lambda: go(work) and None)
        except KeyboardInterrupt:
            print("interrupted", runloom_c.fiber_count())
    """
    assert output(program(code)) == "finally\ninterrupted 0\n"


def test_a_second_interrupt_ends_the_unwinding_at_once() -> None:
    code = """
        def stubborn():
            try:
                forever()
            finally:
                later(0.1)
                end = time.monotonic() + 30
                while time.monotonic() < end:
                    try:
                        runloom_c.sched_sleep(0.01)
                    except runloom.Cancelled:
                        runloom_c.blocking(time.sleep, 0.01)

        def main():
            go(stubborn)
            forever()

        later(0.1)
        begin = time.monotonic()
        try:
            runloom.run(1, main)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begin < 10, flush=True)
        os._exit(0)
    """
    done = script(program(code))
    assert "interrupted True" in done.stdout, done


def test_main_may_catch_it_and_go_on() -> None:
    code = """
        def main():
            for i in range(3):
                later(0.05)
                try:
                    forever()
                except KeyboardInterrupt:
                    print("caught", i)
                runloom_c.sched_sleep(0.01)
            return 1

        print(runloom.run(1, main))
    """
    assert output(program(code)) == "caught 0\ncaught 1\ncaught 2\n1\n"


def test_a_fiber_that_computes_takes_it_and_hands_it_on() -> None:
    code = """
        def spin():
            while True:
                runloom_c.sched_yield()

        def main():
            go(spin)
            try:
                runloom_c.sched_sleep(30)
            except KeyboardInterrupt:
                print("main")
                raise

        later(0.1)
        try:
            runloom.run(1, main)
        except KeyboardInterrupt:
            print("run")
    """
    done = script(program(code))
    assert done.stdout == "main\nrun\n", done
    assert "KeyboardInterrupt" in done.stderr  # the fiber's, which nobody joined


def test_an_interrupt_that_a_fiber_raised_itself_stays_its_own() -> None:
    code = """
        def bad():
            raise KeyboardInterrupt

        def main():
            g = go(bad)
            runloom_c.sched_sleep(0.05)
            print(repr(g.error))

        runloom.run(1, main)
    """
    assert output(program(code)) == "KeyboardInterrupt()\n"


def test_G02_handlers_of_two_kinds_run_while_fibers_wait_and_work() -> None:
    code = """
        counts = {signal.SIGUSR1: 0, signal.SIGUSR2: 0}
        def handler(number, frame):
            counts[number] += 1
        for number in counts:
            signal.signal(number, handler)

        def storm():
            for i in range(500):
                os.kill(os.getpid(), signal.SIGUSR1 if i % 2 else signal.SIGUSR2)
                time.sleep(0.0005)

        def main():
            thread = threading.Thread(target=storm)
            thread.start()
            left, right = runloom_c.Chan(), runloom_c.Chan()
            go(lambda: [right.send(value) for value in left])
            rounds = 0
            while thread.is_alive():
                left.send(rounds)
                assert right.recv() == (rounds, True)
                rounds += 1
                if rounds % 50 == 0:
                    runloom_c.sched_sleep(0.001)
            left.close()

        runloom.run(1, main)
        print(all(count > 50 for count in counts.values()))
    """
    assert output(program(code)) == "True\n"


def test_G02_signals_beside_traffic_with_a_full_wakeup_fd() -> None:
    """No EINTR comes out of a call, no kind of handler is lost, a full pipe is only a warning."""
    code = """
        import socket, runloom.sync
        counts = {signal.SIGUSR1: 0, signal.SIGUSR2: 0}
        def handler(number, frame):
            counts[number] += 1
        for number in counts:
            signal.signal(number, handler)
        nobody, full = socket.socketpair()
        full.setblocking(False)
        try:
            while True: full.send(bytes(4096))
        except BlockingIOError:
            pass
        signal.set_wakeup_fd(full.fileno(), warn_on_full_buffer=False)
        count = 10_000 if os.environ.get("RUNLOOM_FULL") else 1_000

        def storm():
            for i in range(count):
                os.kill(os.getpid(), signal.SIGUSR1 if i % 2 else signal.SIGUSR2)
                time.sleep(0.001)

        def echo(conn):
            with conn:
                while data := conn.recv(1000):
                    conn.sendall(data)

        def main():
            thread = threading.Thread(target=storm)
            thread.start()
            rounds = 0
            with runloom.sync.tcp_listen("127.0.0.1", 0) as listener:
                def client():
                    nonlocal rounds
                    while thread.is_alive():
                        with runloom.sync.tcp_connect(*listener.getsockname()) as conn:
                            for _ in range(20):
                                conn.sendall(b"x" * 1000)
                                got = 0
                                while got < 1000:
                                    got += len(conn.recv(1000))
                                rounds += 1
                    listener.close()
                go(client)
                while True:
                    try:
                        conn, _ = listener.accept()
                    except OSError:
                        break
                    go(lambda conn=conn: echo(conn))
            return rounds

        done = []
        runloom.run(1, lambda: done.append(main()))
        print(done[0] > 20, all(each > count // 10 for each in counts.values()))
    """
    assert output(program(code), limit=60) == "True True\n"


@pytest.mark.parametrize("wait", ["sched_sleep(30)", "park(foreign_wakeable=True)"])
def test_A32_a_handler_runs_promptly_though_nothing_else_happens(wait: str) -> None:
    # The signal is delivered to another thread, so that no system call of ours is interrupted.
    code = f"""
        import _thread
        seen = []
        def handler(*_):
            seen.append(time.monotonic())
            raise TimeoutError("handler")
        signal.signal(signal.SIGUSR1, handler)

        def send():
            time.sleep(0.2)
            seen.append(time.monotonic())
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            time.sleep(30)

        def main():
            threading.Thread(target=send, daemon=True).start()
            try:
                runloom_c.{wait}
            except TimeoutError as error:
                print(error)

        runloom.run(1, main)
        print(seen[1] - seen[0] < 5)
    """
    assert output(program(code)) == "handler\nTrue\n"


def test_an_interrupt_that_comes_with_a_wake_is_not_lost() -> None:
    # The fiber was woken already when the handler raised; no other wait of it follows.
    code = """
        def handler(*_):
            main_fiber.wake()
            raise TimeoutError("handler")
        signal.signal(signal.SIGUSR1, handler)

        def main():
            global main_fiber
            main_fiber = runloom_c.current_g()
            go(forever)
            print(runloom_c.park(foreign_wakeable=True))

        later(0.1, signal.SIGUSR1)
        try:
            runloom.run(1, main)
        except TimeoutError as error:
            print(error)
    """
    assert output(program(code)) == "False\nhandler\n"


def test_an_idle_program_uses_no_time() -> None:
    code = """
        def main():
            runloom_c.sched_sleep(0.2)
            before, polls = time.process_time(), runloom_c.stats()["sleeps"]
            runloom_c.sched_sleep(1)
            print(time.process_time() - before < 0.05, runloom_c.stats()["sleeps"] - polls < 10)

        runloom.run(1, main)
    """
    assert output(program(code)) == "True True\n"


def test_the_wakeup_descriptor_of_another_is_served_and_given_back() -> None:
    code = """
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGUSR1, lambda *_: None)

        def main():
            os.kill(os.getpid(), signal.SIGUSR1)
            runloom_c.sched_sleep(0.02)

        runloom.run(1, main)
        print(os.read(reader, 10) == bytes([signal.SIGUSR1]))
        print(signal.set_wakeup_fd(-1) == writer)
    """
    assert output(program(code)) == "True\nTrue\n"


def test_who_sets_a_wakeup_descriptor_during_run_keeps_it() -> None:
    code = """
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        runloom.run(1, lambda: signal.set_wakeup_fd(writer) and None)
        print(signal.set_wakeup_fd(-1) == writer)
    """
    assert output(program(code)) == "True\n"


@pytest.mark.parametrize(
    "wait",
    [
        "lock.acquire()",
        "runloom_c.Event().wait()",
        "semaphore.acquire()",
        "runloom_c.wait_fd(os.pipe()[0], 1)",
    ],
)
def test_an_interrupt_ends_a_wait_of_the_main_thread_outside_of_fibers(wait: str) -> None:
    code = f"""
        lock, semaphore = runloom_c.Lock(), runloom_c.Semaphore(1)
        lock.acquire(), semaphore.acquire()
        later(0.1)
        try:
            {wait}
        except KeyboardInterrupt:
            print("interrupted")
    """
    assert output(program(code)) == "interrupted\n"


def test_a_handler_that_raises_nothing_does_not_end_such_a_wait() -> None:
    code = """
        event = runloom_c.Event()
        signal.signal(signal.SIGUSR1, lambda *_: print("handler"))
        later(0.05, signal.SIGUSR1)
        threading.Timer(0.15, event.set).start()
        print(event.wait())
    """
    assert output(program(code)) == "handler\nTrue\n"


def test_the_terminals_interrupt_ends_a_server() -> None:
    code = program("""
        def main():
            server = runloom.sync.tcp_listen("127.0.0.1", 0)
            try:
                print("ready", flush=True)
                while True:
                    server.accept()
            finally:
                print("closed", flush=True)

        runloom.run(1, main)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        time.sleep(0.1)
        os.kill(server.pid, signal.SIGINT)
        out, err = server.communicate(timeout=LIMIT)
    assert out == "closed\n"
    assert server.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
