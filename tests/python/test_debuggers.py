"""What looks at frames, across switches: trace and profile functions, sys.monitoring, pdb,
cProfile, faulthandler; and the fiber dump, from everywhere."""

from __future__ import annotations

import bdb
import cProfile
import faulthandler
import io
import os
import pdb
import pstats
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from fiber_support import LIMIT, output, parked, run, until
from socket_support import pair

import runloom.inspect
import runloom.sync
import runloom_c
from runloom_c import current_g, go, sched_yield

pytestmark = pytest.mark.version_sensitive


def own_id() -> int:
    own = current_g()
    return 0 if own is None else own.id


def winding(depth: int) -> int:
    """Calls, generators, handlers and blocks, with a switch in each."""
    total = 0

    def numbers() -> Any:
        for i in range(2):
            sched_yield()
            yield i

    for i in numbers():
        sched_yield()
        total += i
    try:
        sched_yield()
        raise ValueError(depth)
    except ValueError:
        sched_yield()
        total += 1
    finally:
        sched_yield()
    if depth:
        total += winding(depth - 1)
    return total


OWN = {winding.__code__} | {
    each for each in winding.__code__.co_consts if isinstance(each, types.CodeType)
}


# ---------------------------------------------------------------- trace and profile functions


def trace_events(fibers: int, install: str) -> dict[int, list[Any]]:
    """What a function is told of each fiber that runs winding(), by the fiber's id."""
    seen: dict[int, list[Any]] = defaultdict(list)

    def hook(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code in OWN:
            what = arg[0] if event == "exception" else getattr(arg, "__name__", None)
            seen[own_id()].append((event, frame.f_code.co_name, frame.f_lineno, what))
        return hook

    def main() -> None:
        getattr(sys, f"set{install}")(hook)
        try:
            handles = [go(lambda: winding(2)) for _ in range(fibers)]
            for each in handles:
                each.join()
        finally:
            getattr(sys, f"set{install}")(None)

    before = sys.gettrace()
    try:
        run(main)
    finally:
        sys.settrace(before)
    return seen


@pytest.mark.parametrize("install", ["trace", "profile"])
def test_each_fiber_is_told_of_as_if_it_ran_alone(install: str) -> None:
    (alone,) = trace_events(1, install).values()
    together = trace_events(5, install)
    assert len(together) == 5
    for events in together.values():
        assert events == alone
    kinds = {event for event, *_ in alone}
    assert kinds >= ({"call", "line", "return", "exception"} if install == "trace" else {"call"})
    assert len(alone) > 20


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
def test_monitoring_tells_of_each_fiber_as_if_it_ran_alone() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    events = monitoring.events
    wanted = [
        "PY_START", "PY_RETURN", "PY_YIELD", "PY_RESUME", "LINE", "RAISE", "EXCEPTION_HANDLED",
    ]  # fmt: skip

    def told(fibers: int) -> dict[int, list[Any]]:
        seen: dict[int, list[Any]] = defaultdict(list)

        def callback(name: str) -> Callable[..., None]:
            def call(code: types.CodeType, *arguments: Any) -> None:
                if code in OWN:
                    plain = [each for each in arguments if isinstance(each, int | str)]
                    seen[own_id()].append((name, code.co_name, *plain))

            return call

        monitoring.use_tool_id(monitoring.PROFILER_ID, "test")
        try:
            for name in wanted:
                monitoring.register_callback(
                    monitoring.PROFILER_ID, getattr(events, name), callback(name)
                )
            mask = sum(getattr(events, name) for name in wanted)
            monitoring.set_events(monitoring.PROFILER_ID, mask)
            run(lambda: [g.join() for g in [go(lambda: winding(2)) for _ in range(fibers)]])
        finally:
            monitoring.set_events(monitoring.PROFILER_ID, 0)
            for name in wanted:
                monitoring.register_callback(monitoring.PROFILER_ID, getattr(events, name), None)
            monitoring.free_tool_id(monitoring.PROFILER_ID)
        return seen

    (alone,) = told(1).values()
    together = told(5)
    assert len(together) == 5
    assert all(events == alone for events in together.values())
    assert {name for name, *_ in alone} == set(wanted)


def test_a_trace_function_that_comes_and_goes_while_fibers_are_parked() -> None:
    lines: list[int] = []

    def local(frame: types.FrameType, event: str, arg: Any) -> Any:
        lines.append(frame.f_lineno)
        return local

    def work() -> int:
        runloom_c.park_self()
        first = 1
        runloom_c.park_self()
        return first + 1

    def main() -> None:
        fibers = [go(work) for _ in range(3)]
        parked(*fibers)
        sys.settrace(lambda *_: None)
        sys.settrace(None)
        runloom_c.unpark_many(fibers)
        parked(*fibers)
        sys.settrace(lambda frame, *_: local if frame.f_code is work.__code__ else None)
        late = go(work)
        parked(late)
        late.wake()
        for each in fibers:
            each.wake()
        assert [each.join() for each in fibers] == [2, 2, 2]
        sys.settrace(None)
        parked(late)
        late.wake()
        assert late.join() == 2

    before = sys.gettrace()
    try:
        run(main)
    finally:
        sys.settrace(before)
    assert lines  # the one that began while there was a function


# ---------------------------------------------------------------- pdb


class Script(io.StringIO):
    """What a user would type."""


def debugged(commands: list[str], main: Callable[[pdb.Pdb], None]) -> str:
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=Script("\n".join(commands) + "\n"), stdout=out, nosigint=True)
    debugger.use_rawinput = False
    debugger.prompt = ""
    before = sys.gettrace()
    try:
        run(lambda: main(debugger))
    except bdb.BdbQuit:
        pass
    finally:
        sys.settrace(before)
    return out.getvalue()


def stepped(n: int) -> int:
    local = n * 10
    sched_yield()  # others run
    local += 1
    sched_yield()
    return local


FIRST = stepped.__code__.co_firstlineno


def broken_at(debugger: pdb.Pdb, line: int, fibers: Callable[[], None]) -> None:
    """Calls fibers() with a break point in stepped()."""
    debugger.set_break(__file__, line)
    debugger.reset()  # which lets it stop at once: the first command is "c"
    sys.settrace(debugger.trace_dispatch)
    try:
        fibers()
    finally:
        sys.settrace(None)
        debugger.clear_all_breaks()


def test_pdb_steps_over_a_switch_in_its_fiber() -> None:
    def victim() -> int:
        return stepped(7)

    def main(debugger: pdb.Pdb) -> None:
        def fibers() -> None:
            others = [go(lambda: winding(1)) for _ in range(3)]
            assert go(victim).join() == 71
            for each in others:
                each.join()

        broken_at(debugger, FIRST + 2, fibers)

    text = debugged(["c", "p 'local is', local", "n", "p 'then', local", "n", "p 'now', local",
                     "w", "u", "p 'up', sorted(locals())", "c"], main)  # fmt: skip
    assert "('local is', 70)" in text
    assert "('then', 70)" in text
    assert "('now', 71)" in text
    assert text.count("stepped()") >= 3
    assert "victim()" in text  # by `w`
    assert "('up', [])" in text
    assert "winding()" not in text  # no step stopped in another fiber


def test_pdb_breaks_in_any_fiber() -> None:
    def main(debugger: pdb.Pdb) -> None:
        def fibers() -> None:
            made = [go(lambda n=n: stepped(n)) for n in range(1, 4)]  # type: ignore[misc]
            assert [g.join() for g in made] == [11, 21, 31]

        broken_at(debugger, FIRST + 3, fibers)

    text = debugged(["c", *["p 'stopped at', local", "c"] * 3], main)
    for local in (10, 20, 30):
        assert f"('stopped at', {local})" in text


def test_pdb_looks_at_a_fiber_that_failed() -> None:
    def main(debugger: pdb.Pdb) -> None:
        def fails() -> None:
            culprit = "the culprit"
            sched_yield()
            raise LookupError(culprit)

        g = go(fails)
        with pytest.raises(LookupError):
            g.join()
        assert g.error is not None
        debugger.reset()
        debugger.interaction(None, g.error.__traceback__)  # type: ignore[arg-type]

    text = debugged(["p culprit", "w", "q"], main)
    assert "'the culprit'" in text
    assert "fails()" in text


# ---------------------------------------------------------------- cProfile


def test_cprofile_counts_the_calls_of_all_fibers() -> None:
    profile = cProfile.Profile()

    def main() -> None:
        profile.enable()
        fibers = [go(lambda: winding(2)) for _ in range(5)]
        for each in fibers:
            each.join()
        profile.disable()

    run(main)
    stats: Any = pstats.Stats(profile, stream=io.StringIO())
    calls = {name: row[1] for (_, _, name), row in stats.stats.items()}
    times = [value for row in stats.stats.values() for value in row[2:4]]
    assert calls["winding"] == 15
    assert calls["numbers"] == 45  # each is begun once and resumed twice
    assert min(times) >= -1e-6


# ---------------------------------------------------------------- faulthandler, frames of threads


def frames_by_thread() -> dict[int, list[str]]:
    """The functions that faulthandler shows, innermost first, by the thread's id."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        if match := re.match(r"(?:Current thread|Thread) (0x[0-9a-f]+)", line):
            names = found.setdefault(int(match[1], 16), [])
        elif match := re.search(r" in (\S+)$", line):
            names.append(match[1])
    return found


def parked_function() -> None:
    runloom_c.park_self()


def test_faulthandler_shows_the_running_fiber() -> None:
    def inner_function() -> dict[int, list[str]]:
        sched_yield()
        return frames_by_thread()

    def outer_function() -> dict[int, list[str]]:
        return inner_function()

    def main() -> Any:
        others = [go(parked_function) for _ in range(2)]
        parked(*others)
        found = go(outer_function).join()
        runloom_c.unpark_many(others)
        return found

    found = run(main)
    mine = found.pop(threading.get_ident())
    assert [name for name in mine if name != "fiber"] == [
        "frames_by_thread", "inner_function", "outer_function",
    ]  # fmt: skip
    elsewhere = [name for names in found.values() for name in names]
    # Those that are parked stand under an id of their own, where the interpreter has a place.
    assert elsewhere.count("parked_function") == (2 if sys.version_info >= (3, 12) else 0)


def test_frames_of_a_thread_whose_fibers_all_wait() -> None:
    """Its own frames, not those of a fiber that ran last."""
    hub = threading.get_ident()
    seen: list[list[str]] = []

    def starts_all() -> None:
        fibers = [go(parked_function) for _ in range(20)]
        parked(*fibers)
        looked = runloom.sync.Event()

        def look() -> None:
            end = time.monotonic() + LIMIT
            while any(each["state"] == "running" for each in runloom_c.fibers()):
                assert time.monotonic() < end
            for _ in range(50):
                seen.append(frames_by_thread()[hub])
                frame = sys._current_frames()[hub]
                seen.append([each.f_code.co_name for each, _ in traceback.walk_stack(frame)])
            looked.set()

        thread = threading.Thread(target=look)
        thread.start()
        assert looked.wait(LIMIT)
        thread.join()
        runloom_c.unpark_many(fibers)

    run(starts_all)
    assert len(seen) == 100
    assert not any("parked_function" in names or "starts_all" in names for names in seen)


def test_faulthandler_from_its_own_thread_while_fibers_switch() -> None:
    code = """
        import faulthandler, os, time
        import runloom_c
        def deep(n):
            if n: return deep(n - 1)
            runloom_c.sched_yield()
        def work():
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                deep(20)
                runloom_c.sched_sleep(0.0001)
        with open(os.devnull, "w") as sink:
            faulthandler.dump_traceback_later(0.003, repeat=True, file=sink)
            for _ in range(10):
                runloom_c.go(work)
            runloom_c.run()
            faulthandler.cancel_dump_traceback_later()
        print("whole")
    """
    assert output(code) == "whole\n"


# ---------------------------------------------------------------- the dump


def wait_in_python(wait: Callable[[], object]) -> None:
    wait()


def test_P08_every_fiber_tells_its_state_its_reason_its_age_and_its_frames() -> None:
    began, leave = threading.Event(), threading.Event()

    def offload() -> None:
        began.set()
        leave.wait(LIMIT)

    def main() -> None:
        runloom.inspect.enable_timestamps()
        with pair() as (ours, _):
            waits: dict[str, tuple[str, Callable[[], object]]] = {
                "channel receive": ("chan-wait", runloom_c.Chan[int]().recv),
                "channel send": ("chan-wait", lambda: runloom_c.Chan[int]().send(1)),
                "select": ("chan-wait", lambda: runloom_c.select([("recv", runloom_c.Chan())])),
                "sleep": ("sleep", lambda: runloom_c.sched_sleep(LIMIT)),
                "read": ("io-wait", lambda: ours.recv(1)),
                "event": ("park", lambda: runloom_c.Event().wait()),
                "park": ("park", runloom_c.park_self),
            }
            fibers = {
                reason: go(lambda wait=wait: wait_in_python(wait))  # type: ignore[misc]
                for reason, (_, wait) in waits.items()
            }
            offloaded = go(lambda: runloom_c.blocking(offload))
            parked(*fibers.values())
            until(began.is_set)

            def check(where: str) -> None:
                seen = {each["id"]: each for each in runloom.inspect.fibers(stacks=True)}
                for reason, (state, _) in waits.items():
                    entry = seen[fibers[reason].id]
                    assert entry["state"] == state, (where, reason, entry)
                    assert reason in entry["blocked_on"], (where, reason, entry)
                    assert "<lambda>" in entry["name"] or "wait_in_python" in entry["name"]
                    assert 0 <= entry["age"] <= LIMIT
                    # Its frames are looked at on its own thread only.
                    assert not entry["stack"] or "wait_in_python" in str(entry["stack"])
                entry = seen[offloaded.id]
                assert "blocking" in entry["blocked_on"], (where, entry)

            check("a fiber")
            mine = {each["id"]: each for each in runloom.inspect.fibers(stacks=True)}
            for reason in waits:
                names = [name for _, _, name in mine[fibers[reason].id]["stack"]]
                assert "wait_in_python" in names, reason
            runloom_c.blocking(check, "another thread")
            errors: list[BaseException] = []

            def handler(*_: Any) -> None:
                try:
                    check("a signal handler")
                except BaseException as error:
                    errors.append(error)

            before = signal.signal(signal.SIGUSR1, handler)
            os.kill(os.getpid(), signal.SIGUSR1)
            sched_yield()
            signal.signal(signal.SIGUSR1, before)
            assert errors == []
            text = runloom.inspect.format(stacks=True)
            assert text.count("in wait_in_python") == len(waits)
            leave.set()
            offloaded.join()
            for each in fibers.values():
                each.cancel()
            for each in fibers.values():
                with pytest.raises(runloom_c.Cancelled):
                    each.join()

    try:
        run(main)
    finally:
        leave.set()
        runloom.inspect.enable_timestamps(False)


def test_P08_dumps_while_everything_moves() -> None:
    """From a thread and from signal handlers, as often as they come."""
    code = """
        import os, signal, threading, time
        import runloom, runloom.inspect, runloom_c

        sink = os.open(os.devnull, os.O_WRONLY)
        counts = {"signal": 0, "thread": 0}
        over = threading.Event()

        def look(who):
            for entry in runloom_c.fibers():
                assert entry["state"], entry
            runloom.inspect.format(stacks=True)
            runloom_c.dump_fibers(sink)
            counts[who] += 1

        def churn(n):
            chan = runloom_c.Chan(0)
            def send():
                for i in range(5):
                    chan.send(i)
                    runloom_c.sched_yield()
            while not over.is_set():
                runloom_c.go(send)
                for _ in range(5):
                    chan.recv()
                runloom_c.sched_sleep(0.0002)

        def thread():
            while not over.is_set():
                look("thread")

        def main():
            for n in range(20):
                runloom_c.go(lambda n=n: churn(n))
            end = time.monotonic() + 20
            while min(counts.values()) < 100 and time.monotonic() < end:
                runloom_c.sched_sleep(0.002)
            over.set()

        def handler(*_):
            look("signal")
            if not over.is_set():
                signal.setitimer(signal.ITIMER_REAL, 0.001)  # the next one, when this one is over

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        other = threading.Thread(target=thread)
        other.start()
        runloom_c._run_main(main)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        other.join()
        assert min(counts.values()) >= 100, counts
        print("whole")
    """
    assert output(code) == "whole\n"
