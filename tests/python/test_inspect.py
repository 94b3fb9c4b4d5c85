"""runloom.inspect: lists, dumps, leaks, crashes and stacks."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from fiber_support import LIMIT, faults_are_ours, output, parked, run, script, until
from socket_support import failure, pair

import runloom
import runloom.inspect as inspect
import runloom.sync as sync
import runloom_c


def wait_for_ever() -> None:
    sync.Chan[int](0).recv()


# ---------------------------------------------------------------- lists and dumps


def test_fibers_say_what_they_wait_for() -> None:
    def main() -> None:
        with pair() as (ours, _):
            fibers = {
                "sleep": runloom_c.go(lambda: sync.sleep(LIMIT)),
                "chan-wait": runloom_c.go(wait_for_ever),
                "io-wait": runloom_c.go(lambda: ours.recv(1)),
                "park": runloom_c.go(runloom_c.park_self),
            }
            parked(*fibers.values())
            assert inspect.count() == 5
            seen = {each["id"]: each for each in inspect.fibers(stacks=True)}
            for state, fiber in fibers.items():
                assert seen[fiber.id]["state"] == state
            asleep = seen[fibers["sleep"].id]
            assert 0 < asleep["wake_in"] <= LIMIT
            assert seen[fibers["io-wait"].id]["fd"] == ours.fileno()
            frames = seen[fibers["chan-wait"].id]["stack"]
            assert frames[0][2] == "wait_for_ever"
            assert inspect.stack(fibers["chan-wait"].id)[1] == frames
            native = seen[fibers["io-wait"].id]["native_stack"]
            assert any("runloom::net::Fd::recv" in frame for frame in native), native
            text = inspect.format(stacks=True)
            assert f"    at {native[0]}" in text
            assert "in wait_for_ever" in text
            assert f"fd {ours.fileno()} (r)" in text
            assert "wakes in " in text
            assert "5 fibers: 1 chan-wait, 1 io-wait, 1 park, 1 running, 1 sleep" in text
            assert "in wait_for_ever" not in inspect.format()
            out = io.StringIO()
            inspect.dump(out)
            assert "5 fibers" in out.getvalue()
            for each in fibers.values():
                each.cancel()
            until(lambda: inspect.count() == 1)

    run(main)
    assert inspect.format() == "no fibers\n"


def test_a_dump_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    run(inspect.dump)
    assert "1 fibers: 1 running" in capsys.readouterr().err


def test_timestamps_are_asked_for() -> None:
    assert not runloom_c.get_introspect_timestamps()
    inspect.enable_timestamps()
    assert runloom_c.get_introspect_timestamps()
    inspect.enable_timestamps(False)
    assert output("import runloom_c; print(runloom_c.get_introspect_timestamps())",
                  environment={"RUNLOOM_INTROSPECT_TIME": "1"}) == "True\n"  # fmt: skip


def test_leaks_are_found_and_watched() -> None:
    def main() -> None:
        runloom_c.set_deadlock_mode(0)
        lost = runloom_c.go(wait_for_ever)
        asleep = runloom_c.go(lambda: sync.sleep(LIMIT))
        parked(lost, asleep)
        sync.sleep(0.03)
        found = inspect.leaked(0.02)
        assert [each["id"] for each in found] == [lost.id]
        assert found[0]["stack"][0][2] == "wait_for_ever"
        assert len(inspect.leaked(0.02, None)) == 2
        assert [each["id"] for each in inspect.leaked(0.02, "sleep")] == [asleep.id]
        assert inspect.leaked(LIMIT) == []
        told: list[Any] = []
        watch = inspect.watch_leaks(0.002, 0.02, callback=told.append)
        until(lambda: told)
        sync.sleep(0.01)
        assert len(told) == 1  # once
        watch.cancel()
        lost.cancel()
        asleep.cancel()

    run(main)
    with pytest.raises(ValueError, match="interval"):
        inspect.watch_leaks(0)


def test_a_watch_writes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    written: list[str] = []

    def main() -> None:
        lost = runloom_c.go(wait_for_ever)
        parked(lost)
        watch = inspect.watch_leaks(0.002, 0.001)
        until(lambda: written.append(capsys.readouterr().err) or "leaked?" in "".join(written))
        watch.cancel()
        lost.cancel()

    run(main)
    assert "wait_for_ever" in "".join(written)


def test_settings() -> None:
    inspect.set_deadlock_mode("raise")
    assert inspect.get_deadlock_mode() == "raise"
    assert runloom_c.get_deadlock_mode() == 2
    inspect.set_deadlock_mode(1)
    assert inspect.get_deadlock_mode() == "warn"
    with pytest.raises(ValueError, match="off, warn, raise"):
        inspect.set_deadlock_mode("on")
    inspect.set_max_fibers(1)
    assert inspect.get_max_fibers() == 1
    with pytest.raises(RuntimeError, match="fiber limit"):
        run(lambda: runloom_c.go(int))
    inspect.set_max_fibers(0)
    assert inspect.live_fibers() == 0


# ---------------------------------------------------------------- hubs


def test_there_are_no_hubs() -> None:
    assert runloom_c.mn_hub_states() == []
    assert runloom.hubs() == inspect.hubs() == []
    out = io.StringIO()
    inspect.print_hubs(out)
    assert out.getvalue() == "the M:N scheduler is not running\n"
    for call in (runloom_c.mn_init, runloom_c.preempt_init):
        with pytest.raises(RuntimeError, match="free-threaded"):
            call()
    with pytest.raises(RuntimeError, match="not running"):
        runloom_c.mn_fiber(int)
    with pytest.raises(RuntimeError, match="not running"):
        runloom_c.mn_run()
    assert runloom_c.mn_fini() is None
    assert runloom_c.preempt_fini() is None
    with pytest.raises(ValueError):
        runloom_c.mn_init(-1)
    with pytest.raises(ValueError):
        runloom_c.preempt_init(0)


def test_threads_may_be_set_up_by_hand() -> None:
    assert runloom_c.thread_init() is None
    assert runloom_c.thread_fini() is None
    errors: list[BaseException | None] = []
    run(lambda: errors.append(failure(runloom_c.thread_fini)))
    assert isinstance(errors[0], RuntimeError)


# ---------------------------------------------------------------- signals

QUIT = """
    import os, signal, sys, time
    import runloom_c, runloom.inspect as inspect
    {install}
    def main():
        runloom_c.go(lambda: runloom_c.sched_sleep(60))
        runloom_c.sched_yield()
        os.kill(os.getpid(), signal.SIGQUIT)
        time.sleep(0.01)
        print("it goes on", flush=True)
        os._exit(0)
    runloom_c._run_main(main)
"""


def test_a_signal_writes_all_fibers() -> None:
    done = script(QUIT.format(install="assert inspect.install_dump_signal() == signal.SIGQUIT"))
    assert (done.returncode, done.stdout) == (0, "it goes on\n")
    assert "parked in sleep" in done.stderr
    assert "fibers: 1 running 1 parked" in done.stderr or "1 parked" in done.stderr
    done = script(QUIT.format(install=""), environment={"RUNLOOM_TRACEBACK": "1"})
    assert "parked in sleep" in done.stderr
    # A shell that starts the tests in the background has the signal ignored.
    done = script(QUIT.format(install="signal.signal(signal.SIGQUIT, signal.SIG_DFL)"))
    assert done.returncode == -signal.SIGQUIT
    with pytest.raises(OSError):
        inspect.install_dump_signal(signal.SIGKILL)


def test_a_wedged_program_still_answers() -> None:
    """No fiber switches, and no Python code runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import sys, time, runloom_c, runloom.inspect as inspect
            inspect.install_dump_signal()
            def main():
                runloom_c.go(lambda: runloom_c.sched_sleep(60))
                runloom_c.sched_yield()
                print("wedged", flush=True)
                "x" * 1 == sorted([0] * 1) or all(map(bool, iter(int, 1)))
                sum(iter(lambda: 1, 0))
            runloom_c._run_main(main)
        """)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "wedged\n"
        process.send_signal(signal.SIGQUIT)
        line = process.stderr.readline()
        assert "fiber" in line
    finally:
        process.kill()
        process.communicate()


# ---------------------------------------------------------------- crashes

CRASH = """
    import ctypes, os, resource, sys
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import runloom_c, runloom.inspect as inspect
    {install}
    assert inspect.crash_handler_installed() == {installed}
    def main():
        runloom_c.go(lambda: runloom_c.sched_sleep(60))
        runloom_c.sched_yield()
        {crash}
    {run}
"""


def crash(
    what: str,
    install: str = "inspect.install_crash_handler()",
    *,
    installed: bool = True,
    run: str = "runloom_c._run_main(main)",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    code = CRASH.format(install=install, installed=installed, crash=what, run=run)
    return script(code, environment=environment)


WILD = "ctypes.string_at(8)"


@faults_are_ours
def test_a_wild_pointer_is_told_from_an_overflow() -> None:
    done = crash(WILD)
    assert done.returncode == -signal.SIGSEGV
    assert "runloom: fatal SIGSEGV at address 0x8 in fiber" in done.stderr
    assert "no stack overflow, a wild pointer" in done.stderr
    assert "parked in sleep" in done.stderr
    done = crash(WILD, run="main.__code__ and ctypes.string_at(8)")
    assert "outside of fibers" in done.stderr


@faults_are_ours
def test_an_overflow_is_named() -> None:
    # Frames of C that no limit of the interpreter counts.
    deep = "deep = ctypes.CDLL(None); f = ctypes.PYFUNCTYPE(None)(lambda: f()); f()"
    done = crash(
        "import sys; sys.setrecursionlimit(10**8); " + deep,
        run="runloom_c.go(main, stack_size=65536); runloom_c.run()",
    )
    if "STACK OVERFLOW" not in done.stderr:
        pytest.skip("this interpreter counts the frames of callbacks")
    assert done.returncode == -signal.SIGSEGV
    assert "in fiber" in done.stderr


@faults_are_ours
def test_levels(tmp_path: Path) -> None:
    report = tmp_path / "report"
    done = crash(WILD, f"inspect.install_crash_handler('all', {str(report)!r})")
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr  # of faulthandler
    assert "in main" in done.stderr
    assert "runloom_c" in done.stderr  # of backtrace()
    assert "fatal SIGSEGV" in report.read_text()
    done = crash(WILD, "assert not inspect.install_crash_handler('off')", installed=False)
    assert "runloom: fatal" not in done.stderr
    done = crash("os.abort()")
    assert done.returncode == -signal.SIGABRT
    assert "fatal SIGABRT in fiber" in done.stderr
    done = crash(WILD, "import runloom", RUNLOOM_CRASH="backtrace")
    assert "runloom: fatal" in done.stderr
    with pytest.raises(ValueError, match="level must be"):
        inspect.install_crash_handler("loud")
    with pytest.raises(FileNotFoundError):
        inspect.install_crash_handler("on", tmp_path / "none" / "file")
    assert not inspect.crash_handler_installed()


def test_the_handler_can_be_taken_away() -> None:
    before = signal.getsignal(signal.SIGSEGV)
    assert inspect.install_crash_handler("on")
    assert inspect.crash_handler_installed()
    inspect.install_crash_handler("backtrace")
    inspect.uninstall_crash_handler()
    inspect.uninstall_crash_handler()
    assert not inspect.crash_handler_installed()
    assert signal.getsignal(signal.SIGSEGV) == before


@faults_are_ours
def test_a_stopped_program_waits_for_a_debugger() -> None:
    code = CRASH.format(
        install="inspect.install_crash_handler('wait')", installed=True, crash=WILD,
        run="runloom_c._run_main(main)",
    )  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.PIPE, text=True
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(process.pid, signal.SIGCONT)
    _, text = process.communicate(timeout=LIMIT)
    assert f"waiting for a debugger: gdb -p {process.pid}" in text
    assert process.returncode == -signal.SIGSEGV


# ---------------------------------------------------------------- stacks


def recurse(depth: int) -> int:
    return 0 if depth == 0 else 1 + sorted([depth], key=lambda each: recurse(each - 1))[0] * 0


def light() -> None:
    pass


def test_stacks_are_measured_by_kind() -> None:
    inspect.enable_stack_advice()
    try:

        def main() -> None:
            for _ in range(4):
                runloom_c.go(light).join()
                sync.fiber(recurse, 60).join()

        run(main)
        advice = {each["kind"]: each for each in inspect.stack_advice()}
        plain = advice[f"{__name__}.light"]
        deep = advice[f"{__name__}.recurse"]
        assert plain["samples"] == deep["samples"] == 4
        assert 0 < plain["max_hwm"] < deep["max_hwm"]
        assert deep["max_hwm"] < deep["reserved"]
        assert deep["suggested"] > deep["max_hwm"]
        stats = runloom_c.stats()
        assert stats["stack_painting"]
        assert stats["stack_hwm"] >= deep["max_hwm"]
        assert stats["stack_completed"] >= 8
        out = io.StringIO()
        inspect.print_stack_advice(out)
        assert f"{__name__}.recurse" in out.getvalue()
    finally:
        inspect.enable_stack_advice(False)
    assert not runloom_c.stats()["stack_painting"]


def test_sizes_that_were_learned_are_used() -> None:
    assert not inspect.stack_autosize_enabled()
    inspect.enable_stack_autosize(prescan=True)
    try:

        def size() -> int:
            me = runloom_c.current_g()
            assert me is not None
            return next(each["stack_size"] for each in runloom_c.fibers() if each["id"] == me.id)

        def main() -> None:
            default = runloom_c.get_stack_size()
            sizes = [runloom_c.go(size).join() for _ in range(5)]
            assert sizes[:3] == [sizes[0]] * 3
            if sys.version_info >= (3, 12):
                assert sizes[4] < sizes[0]
            else:
                assert sizes[4] == sizes[0]
            assert sizes[0] >= default
            # What is named wins.
            assert runloom_c.go(size, stack_size=default).join() >= default

        run(main)
    finally:
        inspect.enable_stack_autosize(False)


def test_grow_down_is_a_switch() -> None:
    assert runloom.grow_down_enabled()
    runloom.set_grow_down(False)
    assert not runloom.grow_down_enabled()
    runloom.set_grow_down()
    assert runloom.grow_down_enabled()
    for variable, call in (("RUNLOOM_GROW_DOWN", "grow_down_enabled"),
                           ("RUNLOOM_STACK_AUTOSIZE", "stack_autosize_enabled")):  # fmt: skip
        for value in ("0", "1"):
            printed = output(f"import runloom_c; print(runloom_c.{call}())",
                             environment={variable: value})  # fmt: skip
            assert printed == f"{value == '1'}\n"


# ---------------------------------------------------------------- waits that are ended


def test_waits_on_a_descriptor_are_cancelled() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            reader = runloom_c.go(lambda: failure(ours.recv, 1))
            other = runloom_c.go(lambda: sync.sleep(0.01))
            parked(reader, other)
            assert runloom_c.netpoll_cancel_fd(ours.fileno()) == 1
            error = reader.join()
            assert isinstance(error, OSError)
            assert error.errno == 125  # ECANCELED
            assert runloom_c.netpoll_cancel_fd(ours) == 0
            waiter = runloom_c.go(lambda: failure(runloom.wait_fd, ours.fileno(), 1))
            parked(waiter)
            assert runloom_c.netpoll_unregister(ours.fileno()) == 1
            error = waiter.join()
            assert isinstance(error, OSError)
            assert error.errno == 9
            # Once: the next wait is a wait.
            peer.sendall(b"x")
            assert ours.recv(1) == b"x"
            other.join()

    run(main)


def test_all_waits_are_cancelled() -> None:
    def main() -> None:
        errors = [
            runloom_c.go(lambda: failure(wait_for_ever)),
            runloom_c.go(lambda: failure(sync.sleep, LIMIT)),
            runloom_c.go(lambda: failure(runloom_c.park_self)),
        ]
        parked(*errors)
        begin = time.monotonic()
        assert runloom_c.cancel_all_parked() == 3
        for each in errors:
            error = each.join()
            assert isinstance(error, OSError)
            assert error.errno == 125
        assert time.monotonic() - begin < LIMIT
        assert runloom_c.cancel_all_parked() == 0

    run(main)
