"""Spawning: what runs, in which order, and what its handle tells."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from fiber_support import LIMIT, parked, run, run_all

import runloom
import runloom.sync
import runloom_c
from runloom_c import go, sched_yield

# Bytes of stack; see docs/guides/stacks.md.
DEFAULT = (4 if sys.version_info < (3, 12) else 1) << 20


def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is reported because nobody can raise it."""
    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_value))
    return reports


def fail(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


def test_a_fiber_runs_when_the_scheduler_is_driven() -> None:
    ran = []
    g = go(lambda: ran.append(1))
    assert (g.done, g.result, g.error) == (False, None, None)
    assert ran == []
    assert runloom_c.run() == 1
    assert ran == [1]
    assert g.done


def test_result_and_error() -> None:
    good, bad = go(lambda: "result"), go(fail(KeyError("key")))
    runloom_c.run()
    assert (good.result, good.error, good.exception) == ("result", None, None)
    assert bad.result is None
    assert isinstance(bad.error, KeyError)
    assert bad.exception is bad.error


def test_fibers_take_turns_first_in_first_out() -> None:
    order = []

    def work(name: str) -> None:
        for step in range(3):
            order.append(name + str(step))
            sched_yield()

    for name in "abc":
        go(functools.partial(work, name))
    runloom_c.run()
    assert order == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_woken_fiber_goes_to_the_end_of_the_queue() -> None:
    order: list[str] = []

    def main() -> None:
        def sleeper() -> None:
            runloom_c.park_self()
            order.append("woken")

        g = go(sleeper)
        parked(g)
        go(lambda: order.append("before"))
        g.wake()
        go(lambda: order.append("after"))

    run(main)
    assert order == ["before", "woken", "after"]


@pytest.mark.parametrize("spawn", [go, runloom_c.fiber, runloom_c.fiber_fast, runloom.fiber])
def test_every_way_to_spawn_gives_a_handle(spawn: Callable[..., Any]) -> None:
    g = spawn(lambda: 7)
    assert isinstance(g, runloom_c.G)
    runloom_c.run()
    assert g.result == 7


def test_the_friendly_spawns_take_arguments() -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    a = runloom.fiber(call, 1, 2, key=3, stack_size=1 << 18)
    b = runloom.sync.fiber(call, 1, stack_size=3)
    c = runloom.fiber(call)
    runloom_c.run()
    assert a.result == ((1, 2), {"key": 3})
    assert b.result == ((1,), {"stack_size": 3})
    assert c.result == ((), {})


@pytest.mark.parametrize("size", [None, -1, 0, 1, 16 << 10, 64 << 10, 4 << 20])
def test_stack_size_of_one_fiber(size: int | None) -> None:
    seen = []

    def look() -> None:
        (mine,) = (f for f in runloom_c.fibers() if f["state"] == "running")
        seen.append(mine["stack_size"])

    # What looks around needs more than the least stack, so it is asked for from outside.
    g = go(sched_yield, stack_size=size)
    go(lambda: seen.extend(f["stack_size"] for f in runloom_c.fibers() if f["id"] == g.id))
    runloom_c.run()
    expected = {None: DEFAULT, -1: DEFAULT, 0: DEFAULT, 1: 16 << 10}.get(size, size)
    assert seen == [expected]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: go(), r"go\(\) missing required argument 'fn'"),
        (lambda: go(print, 1), r"go\(\) takes at most 1 positional argument \(2 given\)"),
        (lambda: go(print, stack=1), r"go\(\) got an unexpected keyword argument 'stack'"),
        (lambda: go(1), r"go\(\) argument 'fn' must be callable, not int"),
        (lambda: go(print, stack_size="1"), r"stack_size must be an integer, not str"),
        (lambda: go(print, fn=print), r"go\(\) got multiple values for argument 'fn'"),
        (lambda: runloom.fiber(), r"fiber\(\) missing required argument 'fn'"),
        (lambda: runloom_c.fiber_noyield(None), r"must be callable, not NoneType"),
        (lambda: runloom_c.fiber_n(print, "3"), r"n must be an integer, not str"),
        (lambda: runloom_c.G(), r"cannot create 'runloom_c.G' instances"),
    ],
)
def test_wrong_arguments(call: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call()


def test_fiber_n() -> None:
    seen = []
    assert runloom_c.fiber_n(lambda: seen.append("x"), 3) == 3
    assert runloom_c.fiber_n(seen.append, 3, indexed=True) == 3
    assert runloom_c.fiber_n(print, 0) == 0
    runloom_c.run()
    assert seen == ["x", "x", "x", 0, 1, 2]
    with pytest.raises(ValueError, match="n must not be negative"):
        runloom_c.fiber_n(print, -1)


def test_current_g() -> None:
    assert runloom_c.current_g() is None
    g = go(lambda: runloom_c.current_g())
    runloom_c.run()
    assert g.result is g
    assert runloom_c.current_g() is None
    assert runloom.Goroutine is runloom_c.G
    assert runloom.current is runloom_c.current_g


def test_handles_compare_and_hash_by_fiber() -> None:
    a, b = go(print_nothing), go(print_nothing)
    assert a == a
    assert a != b
    assert len({a, b, a}) == 2
    assert a.id != b.id
    runloom_c.run()
    assert a == a
    assert a != b


def print_nothing() -> None:
    pass


def test_repr_tells_the_state() -> None:
    g = go(print_nothing)
    assert repr(g) == f"<runloom.G {g.id} new: {print_nothing!r}>"
    inner = go(lambda: repr(runloom_c.current_g()))
    bad = go(fail(ValueError()))
    runloom_c.run()
    assert repr(g) == f"<runloom.G {g.id} returned>"
    assert "running" in inner.result
    assert repr(bad) == f"<runloom.G {bad.id} raised>"
    assert bad.error


# ---------------------------------------------------------------- join


def test_join_returns_the_result_or_raises_the_error() -> None:
    def main() -> None:
        assert go(lambda: 5).join() == 5
        g = go(fail(ValueError("no")))
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                g.join()

    run(main)


def test_join_outside_of_fibers() -> None:
    g = go(lambda: 5)
    with pytest.raises(RuntimeError, match=r"only run\(\) on this thread"):
        g.join()
    runloom_c.run()
    assert g.join() == 5


def test_join_with_a_timeout() -> None:
    def main() -> None:
        g = go(runloom_c.park_self)
        with pytest.raises(TimeoutError):
            g.join(0.01)
        with pytest.raises(TimeoutError):
            g.join(timeout=0)
        g.wake()
        assert g.join(LIMIT) is None

    run(main)


def test_many_join_one() -> None:
    def main() -> None:
        g = go(runloom_c.park_self)
        joiners = [go(g.join) for _ in range(10)]
        parked(*joiners)
        g.wake()
        assert [each.join() for each in joiners] == [None] * 10

    run(main)


def test_a_fiber_cannot_join_itself() -> None:
    def main() -> None:
        with pytest.raises(RuntimeError, match="can't join itself"):
            runloom_c.current_g().join()  # type: ignore[union-attr]

    run(main)


# ---------------------------------------------------------------- cancel


def test_cancel_raises_from_every_wait() -> None:
    seen = []

    def stubborn() -> str:
        for _ in range(3):
            try:
                runloom_c.sched_sleep(LIMIT)
            except runloom.Cancelled:
                seen.append("cancelled")
        return "ended"

    def main() -> None:
        g = go(stubborn)
        parked(g)
        assert g.cancel()
        assert g.join() == "ended"
        assert not g.cancel()

    run(main)
    assert seen == ["cancelled"] * 3


@pytest.mark.parametrize(
    "wait",
    [
        runloom_c.park_self,
        runloom_c.park,
        lambda: runloom_c.sched_sleep(LIMIT),
        lambda: runloom_c.Chan().recv(),
        lambda: runloom_c.Chan().send(1),
        lambda: runloom_c.select([("recv", runloom_c.Chan())]),
        lambda: runloom_c.Event().wait(),
        lambda: [(s := runloom_c.Semaphore(1)).acquire(), s.acquire()],
        lambda: go(runloom_c.park_self).join(),
        runloom_c.run,
    ],
)
def test_cancel_reaches_every_kind_of_wait(wait: Callable[[], object]) -> None:
    def main() -> None:
        g = go(wait)
        parked(g)
        before = {f["id"] for f in runloom_c.fibers()} - {g.id, runloom_c.current_g().id}  # type: ignore[union-attr]
        g.cancel()
        with pytest.raises(runloom.Cancelled):
            g.join()
        assert isinstance(g.error, runloom.Cancelled)
        if before:  # the one that was joined
            runloom_c.sched_reset()

    run(main)


def test_yielding_is_a_place_to_be_cancelled_too() -> None:
    def spin() -> None:
        while True:
            sched_yield()

    def main() -> None:
        g = go(spin)
        sched_yield()
        g.cancel()
        with pytest.raises(runloom.Cancelled):
            g.join()

    run(main)


def test_what_was_cancelled_before_it_began_does_not_begin() -> None:
    ran = []
    g = go(lambda: ran.append(1))
    assert g.cancel()
    runloom_c.run()
    assert ran == []
    assert g.done
    assert isinstance(g.error, runloom.Cancelled)


def test_cancelled_is_no_exception_that_code_swallows_by_accident() -> None:
    assert issubclass(runloom.Cancelled, BaseException)
    assert not issubclass(runloom.Cancelled, Exception)
    assert runloom.Cancelled.__module__ == "runloom"


# ---------------------------------------------------------------- unhandled exceptions


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_exception_never_unwinds_run(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = unraisable(monkeypatch)
    error = kind("mine")
    g = go(fail(error))
    other = go(lambda: "ran")
    assert runloom_c.run() == 2
    assert other.result == "ran"
    assert g.error is error
    del g
    assert reports == []


def test_an_exception_that_nobody_sees_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = unraisable(monkeypatch)
    error = ValueError("lost")
    go(fail(error))
    kept = go(fail(error))
    runloom_c.run()
    assert reports == [error]
    del kept
    assert reports == [error, error]
    gc.collect()
    assert len(reports) == 2


def test_the_end_by_cancellation_is_no_failure_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = unraisable(monkeypatch)
    g = go(runloom_c.park_self)
    runloom_c.set_deadlock_mode(0)
    runloom_c.run()
    g.cancel()
    del g
    runloom_c.run()
    assert reports == []


def test_what_a_report_shows_may_outlive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", kept.append)
    go(fail(ValueError("lost")))
    runloom_c.run()
    (report,) = kept
    assert isinstance(report.object, runloom_c.G)
    assert report.object.done
    assert isinstance(report.object.error, ValueError)
    del report
    kept.clear()
    gc.collect()


# ---------------------------------------------------------------- what a fiber keeps alive


class Marker:
    pass


def test_the_function_goes_when_the_fiber_ends() -> None:
    marker = Marker()
    gone = weakref.ref(marker)
    g = go(functools.partial(lambda _: None, marker))
    h = runloom.fiber(lambda *_, **__: None, marker, key=marker)
    del marker
    runloom_c.run()
    assert gone() is None
    assert g.done
    assert h.done


def test_locals_of_an_ended_fiber_are_gone() -> None:
    refs = []

    def work() -> None:
        marker = Marker()
        refs.append(weakref.ref(marker))
        sched_yield()

    g = go(work)
    runloom_c.run()
    assert refs[0]() is None
    assert g.done


def test_a_fiber_needs_no_handle_to_live() -> None:
    ran = []

    def work() -> None:
        sched_yield()
        ran.append(1)

    go(work)
    gc.collect()
    runloom_c.run()
    assert ran == [1]


def test_handles_in_a_circle_are_collected() -> None:
    g = go(list)
    runloom_c.run()
    g.result.append(g)  # type: ignore[union-attr,arg-type]
    gone = weakref.ref(g)
    del g
    gc.collect()
    assert gone() is None


def test_a_chain_of_results_is_taken_apart_without_recursion() -> None:
    g = go(lambda: None)
    runloom_c.run()
    for _ in range(50_000):
        g = go(functools.partial(lambda last: last, g))  # type: ignore[assignment]
        runloom_c.run()
    del g


@pytest.mark.version_sensitive
def test_references_balance() -> None:
    def work() -> object:
        return marker

    marker = object()
    run_all(*[work] * 10)
    before = sys.getrefcount(marker), sys.getrefcount(work), sys.getrefcount(None)
    types = sys.getrefcount(runloom_c.G)
    for _ in range(20):
        run_all(*[work] * 50)
    after = sys.getrefcount(marker), sys.getrefcount(work), sys.getrefcount(None)
    assert after[:2] == before[:2]
    assert abs(after[2] - before[2]) < 100
    assert sys.getrefcount(runloom_c.G) <= types + 1100  # handles kept for reuse


# ---------------------------------------------------------------- noyield, limits


def test_a_noyield_fiber_runs() -> None:
    g = runloom_c.fiber_noyield(lambda: 3)
    runloom_c.run()
    assert g.result == 3


@pytest.mark.parametrize(
    "wait",
    [
        sched_yield,
        runloom_c.sched_yield_classic,
        runloom_c.park_self,
        lambda: runloom_c.sched_sleep(1),
        lambda: runloom_c.sched_sleep(0),
        lambda: runloom_c.Chan().recv(),
        lambda: runloom_c.Event().wait(),
        runloom_c.run,
    ],
)
def test_a_noyield_fiber_that_would_wait_is_told_so(wait: Callable[[], object]) -> None:
    g = runloom_c.fiber_noyield(wait)
    runloom_c.run()
    assert isinstance(g.error, RuntimeError)
    assert "fiber_noyield" in str(g.error)


def test_what_needs_no_waiting_works_in_a_noyield_fiber() -> None:
    chan: runloom_c.Chan[int] = runloom_c.Chan(1)

    def work() -> Any:
        chan.send(1)
        with runloom_c.Lock():
            return chan.recv()

    g = runloom_c.fiber_noyield(work)
    runloom_c.run()
    assert g.result == (1, True)


def test_max_fibers() -> None:
    runloom_c.set_max_fibers(3)
    assert runloom_c.get_max_fibers() == 3
    for _ in range(3):
        go(print_nothing)
    assert runloom_c.live_fibers() == 3
    with pytest.raises(RuntimeError, match=r"fiber limit \(3\) exceeded"):
        go(print_nothing)
    assert runloom_c.run() == 3
    go(print_nothing)
    runloom_c.run()
    with pytest.raises(ValueError, match="must not be negative"):
        runloom_c.set_max_fibers(-1)


def test_default_stack_size() -> None:
    assert runloom_c.get_stack_size() == DEFAULT
    try:
        for given, kept in ((1, 16 << 10), (1 << 30, 8 << 20), (300_000, 300_000)):
            runloom_c.set_stack_size(given)
            assert runloom_c.get_stack_size() == kept
            go(print_nothing)
            assert runloom_c.run() == 1
        for wrong in (0, -5):
            with pytest.raises(ValueError, match="must be positive"):
                runloom_c.set_stack_size(wrong)
    finally:
        runloom_c.set_stack_size(DEFAULT)


def test_warmup() -> None:
    assert runloom_c.warmup(50) == 50
    assert runloom_c.prewarm(20, stack_size=128 << 10) == 20
    assert runloom_c.warmup(0) == 0
    with pytest.raises(ValueError, match="must not be negative"):
        runloom_c.warmup(-1)
    assert runloom_c.fiber_count() == 0
