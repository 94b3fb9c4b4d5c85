"""The end of the interpreter, of threads, and forks: in processes of their own."""

from __future__ import annotations

import textwrap

import pytest
from fiber_support import memory_is_returned, output, script

pytestmark = pytest.mark.version_sensitive

HEAD = """
import atexit, os, sys, threading, time, weakref
import runloom, runloom.sync, runloom_c
from runloom_c import go
runloom_c.set_deadlock_mode(0)
"""


def program(code: str) -> str:
    return HEAD + textwrap.dedent(code)


def test_S26_the_interpreter_ends_with_a_thousand_fibers_parked() -> None:
    code = """
        finals = []
        def work(n):
            try:
                runloom_c.park_self()
            finally:
                finals.append(n)

        for n in range(1_000):
            runloom.fiber(work, n)
        runloom_c.run()
        atexit.register(lambda: print(len(finals)))
        sys.exit(7)
    """
    done = script(program(code))
    assert (done.returncode, done.stdout, done.stderr) == (7, "1000\n", ""), done


@pytest.mark.parametrize(
    "wait",
    [
        "runloom_c.park_self()",
        "runloom_c.sched_sleep(100)",
        "runloom_c.Chan().recv()",
        "lock.acquire()",
        "runloom_c.select([('recv', runloom_c.Chan())])",
        "runloom.sync.tcp_listen('127.0.0.1', 0).accept()",
        "go(runloom_c.park_self).join()",
        "runloom_c.run()",
    ],
)
def test_finally_blocks_run_whatever_the_fiber_waits_for(wait: str) -> None:
    code = f"""
        lock = runloom_c.Lock()
        lock.acquire()
        def work():
            try:
                {wait}
            except BaseException as error:
                print(type(error).__name__)
                raise
        g = go(work)
        go(lambda: (runloom_c.sched_yield(), runloom_c.sched_yield(), runloom_c.sched_stop()))
        runloom_c.run()
    """
    assert output(program(code)) == "Cancelled\n"


def test_what_never_began_does_not_begin() -> None:
    code = """
        go(lambda: print("began"))
    """
    assert output(program(code)) == ""


def test_finally_blocks_may_wait_and_spawn_within_bounds() -> None:
    code = """
        def work():
            try:
                runloom_c.park_self()
            finally:
                try:
                    runloom_c.sched_sleep(1)
                except runloom.Cancelled:
                    print("cancelled again")
                try:
                    go(lambda: print("began"))
                except RuntimeError as error:
                    print(error)
        go(work)
        runloom_c.run()
    """
    text = output(program(code))
    assert text.startswith("cancelled again\n")
    assert "began" not in text


def test_a_fiber_that_will_not_end_is_reported_and_left() -> None:
    code = """
        def stubborn():
            while True:
                try:
                    runloom_c.sched_sleep(1)
                except BaseException:
                    pass
        g = go(stubborn)
        go(runloom_c.sched_stop)
        runloom_c.run()
        atexit.register(lambda: print(g.wake(), g.cancel(), g.stack(), g))
    """
    done = script(program(code))
    assert done.returncode == 0, done
    assert "1 fibers did not end" in done.stderr
    assert "'stubborn'" in done.stderr
    assert done.stdout.startswith("None False [] <runloom.G 1 lost")


def test_fibers_of_exit_functions_are_refused() -> None:
    code = """
        def late():
            for call in (lambda: go(print), runloom_c.run, lambda: runloom.run(1, print)):
                try:
                    call()
                except RuntimeError as error:
                    print(error)
            print(runloom_c.current_g(), runloom_c.sched_yield(), runloom_c.stats()["live"])
            channel = runloom_c.Chan(1)
            channel.send(1)
            print(channel.recv())
        atexit.register(late)
        go(int)
        runloom_c.run()
    """
    expected = "can't use fibers at interpreter shutdown\n" * 3 + "None None 0\n(1, True)\n"
    assert output(program(code)) == expected


def test_objects_that_outlive_the_fibers_do_no_harm() -> None:
    code = """
        class Late:
            def __init__(self):
                self.g = go(runloom_c.park_self)
                self.chan, self.lock = runloom_c.Chan(), runloom_c.Lock()
                self.event = runloom_c.Event()
            def __del__(self):
                self.g.wake(), self.g.cancel(), self.g.stack(), repr(self.g)
                self.event.set(), self.lock.acquire(), self.chan.close()
        late = Late()
        late.circle = late
        sys.late = Late()
        runloom_c.run()
    """
    assert output(program(code)) == ""


def test_exit_from_inside_a_fiber() -> None:
    code = """
        def main():
            go(runloom_c.park_self)
            runloom_c.sched_yield()
            sys.exit(5)
        runloom.run(1, main)
    """
    assert script(program(code)).returncode == 5


def test_an_exit_that_asks_nobody() -> None:
    code = """
        def main():
            go(runloom_c.park_self)
            runloom_c.sched_yield()
            os._exit(6)
        runloom.run(1, main)
    """
    done = script(program(code))
    assert (done.returncode, done.stderr) == (6, "")


def test_an_uncaught_exception_sets_the_exit_code() -> None:
    code = """
        def main():
            go(runloom_c.park_self)
            raise ValueError("seen")
        runloom.run(1, main)
    """
    done = script(program(code))
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: seen")


# ---------------------------------------------------------------- threads


def test_each_thread_has_a_scheduler_of_its_own() -> None:
    code = """
        seen = []
        def work(name):
            def fiber():
                runloom_c.sched_sleep(0.01)
                seen.append((name, threading.get_ident()))
            for _ in range(3):
                go(fiber)
            assert runloom_c.run() == 3
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads: thread.start()
        go(lambda: seen.append(("main", threading.get_ident())))
        assert runloom_c.run() == 1
        for thread in threads: thread.join()
        print(len(seen), len(set(seen)), runloom_c.fiber_count())
    """
    assert output(program(code)) == "13 5 0\n"


def test_fibers_end_with_their_thread() -> None:
    code = """
        log = []
        handles = []
        def fiber():
            try:
                runloom_c.park_self()
            except BaseException as error:
                log.append(type(error).__name__)
                raise
        def work():
            handles.extend([go(fiber), go(fiber)])
            runloom_c.run()
            handles.append(go(lambda: log.append("began")))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(log, [g.done for g in handles], runloom_c.fiber_count())
        for g in handles:
            g.wake(), g.cancel()
    """
    assert output(program(code)) == "['Cancelled', 'Cancelled'] [True, True, True] 0\n"


@pytest.mark.parametrize(
    "wait",
    [
        "go(lambda: runloom_c.sched_sleep(100)); runloom_c.run()",
        "go(lambda: runloom_c.park(foreign_wakeable=True)); runloom_c.run()",
        "runloom_c.Event().wait()",
        "lock.acquire(); lock.acquire()",
        "go(spin); runloom_c.run()",
        "runloom_c.wait_fd(os.pipe()[0], 1)",
    ],
)
def test_daemon_threads_do_not_disturb_the_end(wait: str) -> None:
    code = f"""
        lock = runloom_c.Lock()
        def spin():
            while True:
                runloom_c.sched_yield()
        def work():
            {wait}
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.1)
        print("end")
    """
    assert output(program(code)) == "end\n"


@memory_is_returned
def test_many_short_lived_threads() -> None:
    code = """
        def work():
            go(lambda: runloom_c.sched_sleep(0.0001))
            runloom_c.run()
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        def batch(n):
            for _ in range(n):
                threads = [threading.Thread(target=work) for _ in range(4)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
        batch(50)
        before, fds = resident(), len(os.listdir("/proc/self/fd"))
        batch(100)
        print(resident() - before < 4 << 20, len(os.listdir("/proc/self/fd")) == fds)
    """
    assert output(program(code), limit=60) == "True True\n"


# ---------------------------------------------------------------- fork


def test_K01_the_child_runs_no_fiber_of_its_parent() -> None:
    code = """
        reader, writer = os.pipe()
        def append():
            while True:
                os.write(writer, b"%d " % os.getpid())
                runloom_c.sched_yield()
        def main():
            for _ in range(4):
                go(append)
            os.register_at_fork(after_in_child=runloom_c.sched_yield)
            for _ in range(10):
                runloom_c.sched_yield()
                pid = os.fork()
                if pid == 0:
                    for _ in range(20):
                        runloom_c.sched_yield()
                    os._exit(0)
                os.waitpid(pid, 0)
            os.close(writer)
            pids = set(os.read(reader, 1 << 20).split())
            print(pids == {b"%d" % os.getpid()})
            os._exit(0)
        runloom.run(1, main)
    """
    assert script(program(code)).stdout == "True\n"


def test_a_forked_child_goes_on_with_the_fiber_that_forked() -> None:
    code = """
        def parked():
            try:
                runloom_c.park_self()
            finally:
                print("unwound in", "child" if os.getpid() != parent else "parent", flush=True)
        parent = os.getpid()
        def main():
            others = [go(parked) for _ in range(3)]
            runloom_c.sched_yield()
            pid = os.fork()
            if pid == 0:
                assert [g.done for g in others] == [True] * 3
                for g in others:
                    g.wake(), g.cancel(), g.stack()
                print("child", runloom_c.fiber_count(), flush=True)
                chan = runloom_c.Chan()
                go(lambda: chan.send("spawned in child"))
                print(chan.recv()[0], flush=True)
                runloom_c.sched_sleep(0.01)
                return
            assert os.waitpid(pid, 0)[1] == 0
            print("parent", runloom_c.fiber_count(), flush=True)
            for g in others:
                g.cancel()
        runloom.run(1, main)
        if os.getpid() != parent:
            print("child ends", flush=True)
    """
    assert output(program(code)).splitlines() == [
        "child 1",
        "spawned in child",
        "child ends",
        "parent 4",
        *["unwound in parent"] * 3,
    ]


def test_a_fork_outside_of_fibers_starts_with_none() -> None:
    code = """
        gone = weakref.ref(go(runloom_c.park_self))
        kept = go(runloom_c.park_self)
        go(int)
        runloom_c.run()
        pid = os.fork()
        if pid == 0:
            print(runloom_c.fiber_count(), kept.done, kept.error, kept.result, flush=True)
            print(runloom_c.run(), go(int).done, runloom_c.run(), flush=True)
            try: kept.join()
            except runloom.Cancelled as error: print(error, flush=True)
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), runloom_c.fiber_count())
        kept.wake()
        print(runloom_c.run())
    """
    assert output(program(code)).splitlines() == [
        "0 True None None",
        "0 False 1",
        "the fiber was dropped",
        "3 2",
        "1",
    ]


def test_signals_reach_parent_and_child_apart() -> None:
    code = """
        import signal
        def interrupted():
            try:
                runloom_c.sched_sleep(30)
            except KeyboardInterrupt:
                return True
        def main():
            pid = os.fork()
            if pid == 0:
                print("child", interrupted(), flush=True)
                os._exit(0)
            runloom_c.sched_sleep(0.2)
            os.kill(pid, signal.SIGINT)
            os.waitpid(pid, 0)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            print("parent", interrupted(), flush=True)
        runloom.run(1, main)
    """
    assert output(program(code)) == "child True\nparent True\n"


def test_K02_both_sides_go_on_with_their_own_sockets() -> None:
    """The child closes what it inherits and serves on the same numbers; the parent's waits hold."""
    code = """
        import socket, runloom.sync as sync

        def echo_once(rounds):
            with sync.tcp_listen("127.0.0.1", 0) as listener:
                def serve():
                    conn, _ = listener.accept()
                    with conn:
                        while data := conn.recv(100):
                            conn.sendall(data)
                server = sync.fiber(serve)
                with sync.tcp_connect(*listener.getsockname()) as conn:
                    for i in range(rounds):
                        conn.sendall(b"%d" % i)
                        assert conn.recv(100) == b"%d" % i
                server.join()

        def main():
            pairs = [sync.socketpair() for _ in range(10)]
            readers = [go(lambda left=left: left.recv(10)) for left, _ in pairs]
            runloom_c.sched_sleep(0.01)  # they wait, and are registered
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    for left, right in pairs:
                        left.close(), right.close()
                    echo_once(20)
                    os._exit(0)
                echo_once(20)
                status = runloom_c.blocking(os.waitpid, pid, 0)[1]
                assert os.waitstatus_to_exitcode(status) == 0, status
                assert not any(each.done for each in readers)
            for n, (_, right) in enumerate(pairs):
                right.sendall(b"%d" % n)
            assert [each.join() for each in readers] == [b"%d" % n for n in range(10)]
            for left, right in pairs:
                left.close(), right.close()
            print("ok")

        runloom.run(1, main)
    """
    done = script(program(code))
    assert done.stdout == "ok\n", done  # 3.12 warns of forks in programs with threads
    assert done.returncode == 0


def test_K02_a_fork_while_other_threads_run_fibers() -> None:
    code = """
        stop = threading.Event()
        def work():
            def spin():
                while not stop.is_set():
                    runloom_c.sched_sleep(0.0001)
            go(spin)
            runloom_c.run()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads: thread.start()
        def main():
            for _ in range(10):
                pid = os.fork()
                if pid == 0:
                    runloom_c.sched_sleep(0.001)
                    os._exit(runloom_c.fiber_count())
                while True:
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done: break
                    runloom_c.sched_sleep(0.001)
                assert os.waitstatus_to_exitcode(status) == 1, status
            print("ok")
        runloom.run(1, main)
        stop.set()
        for thread in threads: thread.join()
    """
    done = script(program(code))
    assert done.stdout == "ok\n", done  # 3.12 warns of forks in programs with threads
    assert done.returncode == 0


def test_subprocesses_start_from_fibers() -> None:
    code = """
        import subprocess
        def main():
            go(runloom_c.park_self).cancel()
            print(subprocess.run(["echo", "x"], capture_output=True).stdout)
            print(subprocess.run(["echo", "y"], capture_output=True,
                                 preexec_fn=lambda: None).stdout)
        runloom.run(1, main)
    """
    done = script(program(code))
    assert done.stdout == "b'x\\n'\nb'y\\n'\n", done
