"""run(): what it drains, what ends it, what it raises."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fiber_support import LIMIT, memory_is_returned, parked, run, script

import runloom
import runloom.sync
import runloom_c
from runloom_c import go, sched_yield


def test_nothing_to_do() -> None:
    assert runloom_c.run() == 0
    assert runloom.run(1) == 0
    assert runloom.sync.run() == 0


def test_the_count_includes_what_fibers_spawn() -> None:
    def spawn(depth: int) -> None:
        if depth:
            go(lambda: spawn(depth - 1))

    go(lambda: spawn(9))
    assert runloom_c.run() == 10
    assert runloom_c.run() == 0


FULL = bool(os.environ.get("RUNLOOM_FULL"))


def test_S20_run_returns_only_when_all_have_ended() -> None:
    count = 30_000
    for _ in range(50 if FULL else 3):
        ended = []
        for _ in range(count):
            go(lambda: ended.append(sched_yield()))  # noqa: B023
        assert runloom_c.run() == count
        assert len(ended) == count


def test_S22_one_fiber_spawns_very_many() -> None:
    count = 1_000_000 if FULL else 100_000
    go(lambda: [go(int) for _ in range(count)] and None)
    assert runloom_c.run() == count + 1


# ---------------------------------------------------------------- nested


def test_a_nested_run_drains_all_but_those_in_one() -> None:
    order: list[str] = []

    def worker() -> None:
        runloom_c.sched_sleep(0.01)
        order.append("worker")

    def main() -> None:
        go(worker)
        assert runloom_c.run() == 1
        order.append("main")

    def other() -> None:
        runloom_c.run()
        order.append("other")

    go(main)
    go(other)
    assert runloom_c.run() == 3
    assert order[0] == "worker"
    assert sorted(order) == ["main", "other", "worker"]


def test_run_main_inside_a_fiber() -> None:
    seen: list[str] = []

    def inner() -> None:
        sched_yield()
        seen.append("inner")

    def outer() -> None:
        assert runloom.run(1, inner) == 1
        with pytest.raises(ValueError, match="inner"):
            runloom.run(1, fail)
        seen.append("outer")

    def fail() -> None:
        raise ValueError("inner")

    assert runloom.run(1, outer) == 3
    assert seen == ["inner", "outer"]


def test_what_a_nested_main_raises_cancels_those_it_waits_for() -> None:
    ended: list[Any] = []

    def server() -> None:
        try:
            runloom_c.sched_sleep(LIMIT)
        except BaseException as error:
            ended.append(type(error))
            raise

    def fail() -> None:
        g = go(server)
        parked(g)
        raise ValueError("mine")

    def outer() -> None:
        with pytest.raises(ValueError, match="mine"):
            runloom.run(1, fail)
        sched_yield()  # the fiber outside was not cancelled
        ended.append("outer")

    runloom.run(1, outer)
    assert ended == [runloom.Cancelled, "outer"]


def test_a_nested_run_that_is_cancelled_ends_no_other_fiber() -> None:
    ended: list[str] = []
    left: list[runloom_c.G] = []

    def inner() -> None:
        left.append(go(lambda: runloom_c.sched_sleep(LIMIT)))  # its main does not wait

    def other() -> None:
        runloom_c.sched_sleep(0.02)
        ended.append("other")

    def outer() -> None:
        nested = go(lambda: runloom.run(1, inner))
        bystander = go(other)
        parked(nested)
        nested.cancel()
        with pytest.raises(runloom.Cancelled):
            nested.join()
        bystander.join()
        left[0].cancel()
        go(lambda: ended.append("later")).join()
        ended.append("outer")

    runloom.run(1, outer)
    assert ended == ["other", "later", "outer"]


def test_run_is_not_entered_twice_by_a_signal_handler() -> None:
    # In the hub's own context, where handlers run while all fibers wait.
    done = script("""
        import os, signal, threading, runloom_c
        def handler(*_):
            try: runloom_c.run()
            except RuntimeError as error: print(error)
        signal.signal(signal.SIGUSR1, handler)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        runloom_c.go(lambda: runloom_c.sched_sleep(0.3))
        print(runloom_c.run())
    """)
    assert done.stdout == "run() is already running on this thread\n1\n", done


# ---------------------------------------------------------------- run(n, main)


def test_run_main_returns_how_many_ended() -> None:
    assert runloom.run(1, lambda: go(int) and None) == 2
    assert runloom.sync.run(lambda: None) == 1


@pytest.mark.parametrize("n", [0, -1, True, False, 1.0, "1", None])
def test_the_number_of_threads_is_checked(n: Any) -> None:
    with pytest.raises(ValueError, match="must be an int >= 1"):
        runloom.run(n)


@pytest.mark.parametrize("run", [lambda f: runloom.run(1, f), runloom.sync.run])
def test_main_must_be_callable(run: Callable[[Any], int]) -> None:
    with pytest.raises(TypeError, match="must be callable"):
        run(5)


def test_more_threads_need_a_python_without_the_gil() -> None:
    with pytest.raises(RuntimeError, match="free-threaded CPython"):
        runloom.run(2, lambda: None)


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("run", [lambda f: runloom.run(1, f), runloom.sync.run])
def test_what_main_raises_is_raised_after_the_others_have_unwound(
    run: Callable[[Any], int], error: BaseException
) -> None:
    unwound = []

    def server() -> None:
        try:
            while True:
                runloom_c.park_self()
        finally:
            sched_yield_quietly()
            unwound.append(1)

    def sched_yield_quietly() -> None:
        try:
            sched_yield()
        except runloom.Cancelled:
            pass

    def main() -> None:
        parked(*[go(server) for _ in range(3)])
        go(lambda: unwound.append("never begun"))
        raise error

    with pytest.raises(type(error)) as caught:
        run(main)
    assert caught.value is error
    assert unwound == [1, 1, 1]
    assert runloom_c.fiber_count() == 0


def test_the_traceback_shows_main_and_run() -> None:
    def main() -> None:
        raise ValueError("deep")

    with pytest.raises(ValueError, match="deep") as caught:
        runloom.run(1, main)
    names = [frame.name for frame in caught.traceback]
    assert names[-1] == "main"
    assert "run" in names


def test_what_is_spawned_while_others_unwind_does_not_begin() -> None:
    ran = []

    def server() -> None:
        try:
            runloom_c.park_self()
        finally:
            go(lambda: ran.append("late"))

    def main() -> None:
        parked(go(server))
        raise ValueError

    with pytest.raises(ValueError):
        runloom.run(1, main)
    assert ran == []


def test_fibers_may_run_again_after_main_raised() -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        runloom.run(1, fail)
    assert runloom.run(1, lambda: None) == 1


def test_main_that_returns_waits_for_the_others() -> None:
    ended = []

    def main() -> None:
        go(lambda: ended.append(runloom_c.sched_sleep(0.02)))

    runloom.run(1, main)
    assert ended == [None]


# ---------------------------------------------------------------- deadlock, stop, reset


def test_deadlock_is_raised() -> None:
    runloom_c.set_deadlock_mode(2)
    handles = [go(runloom_c.park_self) for _ in range(3)]
    with pytest.raises(RuntimeError) as caught:
        runloom_c.run()
    assert str(caught.value) == "all fibers are blocked -- deadlock (3 parked, none runnable)"
    assert runloom_c.count_deadlocked() == 3
    for g in handles:
        g.wake()
    assert runloom_c.run() == 3
    assert runloom_c.count_deadlocked() == 0


def test_deadlock_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    runloom_c.set_deadlock_mode(1)

    def stuck() -> None:
        runloom_c.Chan().recv()

    g = go(stuck)
    assert runloom_c.run() == 0
    text = capfd.readouterr().err
    assert "all fibers are blocked -- deadlock" in text
    assert f"fiber {g.id} 'stuck'" in text
    g.cancel()
    assert runloom_c.run() == 1


def test_deadlock_is_passed_over(capfd: pytest.CaptureFixture[str]) -> None:
    runloom_c.set_deadlock_mode(0)
    assert runloom_c.get_deadlock_mode() == 0
    g = go(runloom_c.park_self)
    assert runloom_c.run() == 0
    assert capfd.readouterr().err == ""
    g.wake()
    assert runloom_c.run() == 1
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match="deadlock mode must be"):
            runloom_c.set_deadlock_mode(wrong)


@pytest.mark.parametrize(
    ("value", "text"), [("off", "0 0"), ("warn", "1 0"), ("raise", "2 RuntimeError")]
)
def test_the_mode_comes_from_the_environment(value: str, text: str) -> None:
    code = """
        import runloom_c
        runloom_c.go(runloom_c.park_self)
        try: end = runloom_c.run()
        except RuntimeError as error: end = type(error).__name__
        print(runloom_c.get_deadlock_mode(), end)
    """
    done = script(code, environment={"RUNLOOM_DEADLOCK": value})
    assert done.stdout == text + "\n", done
    assert ("deadlock" in done.stderr) == (value == "warn")


def test_nested_deadlock() -> None:
    runloom_c.set_deadlock_mode(2)

    def main() -> None:
        g = go(runloom_c.park_self)
        with pytest.raises(RuntimeError, match="deadlock"):
            runloom_c.run()
        g.wake()

    assert runloom.run(1, main) == 2


def test_who_waits_for_another_thread_keeps_run_alive() -> None:
    def main() -> None:
        g = runloom_c.current_g()
        assert g is not None
        threading.Timer(0.05, g.wake).start()
        assert runloom_c.park(foreign_wakeable=True) is False

    run(main)


def test_stop_leaves_what_is_queued_for_the_next_run() -> None:
    order: list[int] = []

    def work(i: int) -> None:
        for step in range(2):
            order.append(i * 10 + step)
            if i == 1 and step == 0:
                runloom_c.sched_stop()
            sched_yield()

    for i in range(3):
        runloom_c.fiber(lambda i=i: work(i))
    assert runloom_c.run() < 3
    first = list(order)
    assert runloom_c.run() + 3 > 3
    assert order[: len(first)] == first
    assert sorted(order) == [0, 1, 10, 11, 20, 21]


def test_a_stop_before_run_is_cleared_by_it() -> None:
    go(sched_yield)
    runloom_c.sched_stop()
    assert runloom_c.run() == 1


def test_stop_from_a_parked_crowd() -> None:
    g = go(lambda: runloom_c.sched_sleep(LIMIT))

    def stop() -> None:
        parked(g)
        runloom_c.sched_stop()

    go(stop)
    begin = time.monotonic()
    runloom_c.run()
    assert time.monotonic() - begin < LIMIT
    assert not g.done
    g.cancel()
    assert runloom_c.run() >= 1


def test_reset_ends_everything() -> None:
    runloom_c.set_deadlock_mode(0)
    unwound = []

    def wait(how: Callable[[], object]) -> Callable[[], None]:
        def work() -> None:
            try:
                how()
            finally:
                unwound.append(1)

        return work

    handles = [go(wait(runloom_c.park_self)), go(wait(lambda: runloom_c.sched_sleep(LIMIT)))]
    go(lambda: parked(*handles) or runloom_c.sched_stop())
    runloom_c.run()
    handles.append(go(wait(print)))
    counts = runloom_c.sched_reset()
    assert counts[1:] == (1, 1)
    assert counts[0] >= 1
    assert all(g.done for g in handles)
    assert unwound == [1, 1]
    assert runloom_c.sched_reset() == (0, 0, 0)
    assert runloom_c.run() == 0


def test_reset_without_a_scheduler() -> None:
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(runloom_c.sched_reset()))
    thread.start()
    thread.join()
    assert seen == [(0, 0, 0)]


# ---------------------------------------------------------------- time


def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    order: list[int] = []

    def sleep(i: int) -> None:
        runloom_c.sched_sleep(0.03 - i * 0.005)
        order.append(i)

    for i in range(6):
        runloom_c.fiber(lambda i=i: sleep(i))
    runloom_c.run()
    assert order == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("sleep", [runloom.sleep, runloom.sync.sleep, runloom_c.sleep])
def test_friendly_sleeps_block_the_thread_outside_of_fibers(sleep: Callable[[float], None]) -> None:
    begin = time.monotonic()
    sleep(0.02)
    assert time.monotonic() - begin >= 0.02
    sleep(0)
    sleep(-1)


def test_sleep_lasts_at_least_so_long() -> None:
    def main() -> None:
        for seconds in (0.001, 0.0005, 0.01):
            begin = time.monotonic()
            runloom_c.sched_sleep(seconds)
            assert time.monotonic() - begin >= seconds

    run(main)


def test_outside_of_fibers_the_plain_calls_return_at_once() -> None:
    assert runloom_c.sched_yield() is None
    assert runloom_c.sched_yield_classic() is None
    assert runloom_c.sched_sleep(LIMIT) is None
    assert runloom_c.park_self() is None
    with pytest.raises(RuntimeError, match=r"park\(\) outside of a fiber"):
        runloom_c.park(timeout=1)


def test_sleep_of_no_time_yields() -> None:
    order: list[str] = []

    def main() -> None:
        go(lambda: order.append("other"))
        runloom_c.sched_sleep(0)
        order.append("main")
        go(lambda: order.append("other"))
        runloom_c.sched_sleep(-1)
        order.append("main")

    run(main)
    assert order == ["other", "main"] * 2


@pytest.mark.parametrize("value", ["x", None, float("nan")])
def test_wrong_times(value: Any) -> None:
    error = ValueError if value == value and not isinstance(value, str) and value else TypeError
    if isinstance(value, float):
        error = ValueError
    for call in (runloom_c.sched_sleep, runloom_c.sleep):
        with pytest.raises(error, match="seconds must"):
            call(value)


def test_S04_yielders_do_not_starve_a_timer() -> None:
    def main() -> int:
        stop = []

        def spin() -> None:
            while not stop:
                sched_yield()

        go(spin)
        go(spin)
        before = runloom_c.stats()["switches"]
        runloom_c.sched_sleep(0.01)
        stop.append(1)
        return int(runloom_c.stats()["turns"]) and before

    run(main)


def test_the_gil_is_released_while_all_wait() -> None:
    counted = []

    def count() -> None:
        for _ in range(20):
            counted.append(1)
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    go(lambda: (thread.start(), runloom_c.sched_sleep(0.2)))
    runloom_c.run()
    thread.join()
    assert len(counted) == 20


@memory_is_returned
def test_P12_runs_do_not_grow_the_process() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cycle() -> None:
        for _ in range(100):
            go(sched_yield)
        runloom_c.run()

    for _ in range(50):
        cycle()
    before = resident()
    for _ in range(200):
        cycle()
    assert resident() - before < 2 << 20
    assert sys.getrefcount(cycle) < 10


@memory_is_returned
def test_P12_spawns_and_stacks_do_not_grow_the_process() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def spawns(count: int) -> None:
        # Few at once: what their stacks have is given back when it was idle for a while, and taken
        # again, which is no growth.
        for _ in range(count // 50):
            for _ in range(50):
                go(int)
            runloom_c.run()

    def stacks(count: int) -> None:
        def main() -> None:
            g = go(runloom_c.park_self)
            sched_yield()
            for _ in range(count):
                g.stack()
            g.wake()

        go(main)
        runloom_c.run()

    spawns(20_000)
    stacks(2_000)
    before = resident()
    spawns(1_000_000 if FULL else 200_000)
    stacks(100_000)
    assert resident() - before < 2 << 20


@pytest.mark.parametrize("value", ["lots", "17", ""])
def test_a_stack_size_that_cannot_be_read_leaves_the_default(value: str) -> None:
    code = "import runloom_c; print(runloom_c.get_stack_size())"
    unset = script(code)
    done = script(code, environment={"RUNLOOM_STACK_SIZE": value})
    assert done.stdout == unset.stdout, done
    assert ("RUNLOOM_STACK_SIZE" in done.stderr) == bool(value)


def test_run_with_a_function_alone_says_how_it_is_called() -> None:
    run: Any = runloom.run
    with pytest.raises(ValueError, match=r"n must be an int >= 1.*run\(1, main_fn\)"):
        run(print)
    with pytest.raises(ValueError, match=r"n must be an int >= 1, not 0$"):
        run(0, print)
