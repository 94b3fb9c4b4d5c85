"""park and wake: counted permits, timeouts, wakes from other threads."""

from __future__ import annotations

import threading
import time

import pytest
from fiber_support import LIMIT, parked, run, run_all

import runloom.sync
import runloom_c
from runloom_c import G, go


def test_a_wake_before_the_park_is_counted() -> None:
    g = go(lambda: [runloom_c.park_self() for _ in range(3)])
    for _ in range(3):
        g.wake()
    assert runloom_c.run() == 1


def test_each_wake_ends_one_park() -> None:
    steps = []

    def work() -> None:
        for i in range(3):
            runloom_c.park_self()
            steps.append(i)

    def main() -> None:
        g = go(work)
        for i in range(3):
            parked(g)
            assert steps == list(range(i))
            g.wake()
        g.join()

    run(main)
    assert steps == [0, 1, 2]


def test_timeouts() -> None:
    def main() -> None:
        g = runloom_c.current_g()
        assert g is not None
        begin = time.monotonic()
        assert runloom_c.park(timeout=0.01) is True
        assert time.monotonic() - begin >= 0.01
        assert runloom_c.park(0) is True
        assert runloom_c.park(-1) is True
        g.wake()
        assert runloom_c.park(timeout=0) is False
        g.wake()
        assert runloom_c.park(timeout=LIMIT) is False
        g.wake()
        assert runloom_c.park(-1) is False  # a pending wake comes first
        assert runloom_c.park(timeout=0.001) is True

    run(main)


def test_waking_what_has_ended_does_nothing() -> None:
    g = go(int)
    runloom_c.run()
    g.wake()
    runloom.sync.wake(g)
    runloom.sync.wake(None)


def test_unpark_many() -> None:
    def main() -> None:
        handles = [go(runloom_c.park_self) for _ in range(5)]
        parked(*handles)
        runloom_c.unpark_many(handles)
        for g in handles:
            g.join()
        runloom_c.unpark_many(iter(handles))
        with pytest.raises(TypeError, match="handles of fibers, not int"):
            runloom_c.unpark_many([1])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="iterable"):
            runloom_c.unpark_many(3)  # type: ignore[arg-type]

    run(main)


def test_wakes_from_other_threads() -> None:
    rounds = 2_000

    def main() -> None:
        g = runloom_c.current_g()
        assert g is not None
        threads = [
            threading.Thread(target=lambda: [g.wake() for _ in range(rounds)]) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for _ in range(rounds * len(threads)):
            assert runloom_c.park(LIMIT, foreign_wakeable=True) is False
        for thread in threads:
            thread.join()
        assert runloom_c.park(0) is True

    run(main)


def test_ping_pong_between_fibers_of_two_threads() -> None:
    rounds = 500
    sides: dict[str, G[None]] = {}
    ready = threading.Barrier(2)

    def play(own: str, other: str, first: bool) -> None:
        def work() -> None:
            for _ in range(rounds):
                if first:
                    sides[other].wake()
                assert runloom_c.park(LIMIT, foreign_wakeable=True) is False
                if not first:
                    sides[other].wake()

        sides[own] = go(work)
        ready.wait()
        runloom_c.run()
        assert sides[own].done

    thread = threading.Thread(target=play, args=("a", "b", True))
    thread.start()
    play("b", "a", False)
    thread.join()


def test_many_fibers_wait_at_the_same_time() -> None:
    def main() -> None:
        handles = [go(runloom_c.park_self) for _ in range(5_000)]
        parked(handles[-1])
        for g in handles:
            g.wake()
        for g in handles:
            g.join()

    run(main)


def test_results_of_parallel_sleeps() -> None:
    begin = time.monotonic()
    assert run_all(*[lambda: runloom_c.sched_sleep(0.05)] * 100) == [None] * 100
    assert time.monotonic() - begin < LIMIT
