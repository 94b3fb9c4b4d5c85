"""Timers, tickers and what they leave behind."""

from __future__ import annotations

import gc
import math
import time
from typing import Any

import pytest
from fiber_support import LIMIT, run, until

import runloom
import runloom.sync as sync
import runloom.time as t
import runloom_c


def test_after_delivers_the_time_once() -> None:
    def main() -> None:
        begin, clock = time.monotonic(), time.time()
        after = t.After(0.01)
        assert after.try_recv() is None
        value, ok = after.recv()
        assert ok
        assert time.monotonic() - begin >= 0.01
        assert clock <= value <= time.time()
        assert after.try_recv() is None
        assert not after.closed
        assert t.After(-1).recv()[1]

    run(main)


def test_after_is_a_case_of_select() -> None:
    def main() -> None:
        messages: sync.Chan[int] = sync.Chan(0)
        index, payload = sync.select([("recv", messages), ("recv", t.After(0.002))])
        assert index == 1
        assert payload[1]

    run(main)


def test_a_timer_stops_and_starts_again() -> None:
    def main() -> None:
        timer = t.NewTimer(LIMIT)
        assert timer.c is timer.C
        assert timer.Stop() is True
        assert timer.Stop() is False
        assert timer.Reset(0.001) is False
        timer.C.recv()
        assert timer.Stop() is False
        timer.Reset(LIMIT)
        assert timer.Reset(0.001) is True
        timer.C.recv()
        timer.Reset(LIMIT)
        timer.Stop()

    begin = time.monotonic()
    run(main)
    assert time.monotonic() - begin < LIMIT  # run() did not wait for what was stopped


def test_nobody_waits_for_a_timer_that_nobody_has() -> None:
    def main() -> None:
        for _ in range(100):
            t.After(LIMIT)
            t.NewTimer(LIMIT)
            t.Tick(LIMIT)
        gc.collect()
        until(lambda: runloom_c.fiber_count() == 1)

    run(main)


def test_a_ticker_ticks_without_drift() -> None:
    def main() -> None:
        begin = time.monotonic()
        ticker = t.NewTicker(0.004)
        assert ticker.c is ticker.C
        for count in range(1, 6):
            ticker.C.recv()
            assert time.monotonic() - begin >= count * 0.004
        ticker.Stop()
        ticker.Stop()
        sync.sleep(0.01)
        assert ticker.C.try_recv() is None
        ticker.Reset(0.001)
        ticker.C.recv()
        ticker.Stop()

    run(main)


def test_ticks_are_dropped_where_there_is_no_room() -> None:
    def main() -> None:
        ticker = t.NewTicker(0.001)
        sync.sleep(0.02)
        ticker.Stop()
        assert ticker.C.try_recv() is not None
        assert ticker.C.try_recv() is None

    run(main)


def test_a_ticker_ends_with_its_channel() -> None:
    def main() -> None:
        channel = t.Tick(0.001)
        channel.recv()
        del channel
        gc.collect()
        until(lambda: runloom_c.fiber_count() == 1)
        ticker = t.NewTicker(0.001)
        ticker.C.close()
        until(lambda: runloom_c.fiber_count() == 1)
        ticker.Stop()

    run(main)


@pytest.mark.parametrize("seconds", [0, -1, math.nan])
def test_a_ticker_needs_a_positive_interval(seconds: float) -> None:
    with pytest.raises(ValueError, match="positive interval"):
        t.NewTicker(seconds)


def test_sleep() -> None:
    assert t.Sleep is runloom.sleep or t.Sleep(0) is None
    begin = time.monotonic()
    t.Sleep(0.005)  # outside of fibers the thread sleeps
    run(lambda: t.Sleep(0.005))
    assert time.monotonic() - begin >= 0.01


def test_after_func() -> None:
    def main() -> None:
        called: list[Any] = []
        t.AfterFunc(0.001, lambda: called.append(1))
        until(lambda: called)
        timer = t.AfterFunc(LIMIT, lambda: called.append(2))
        assert timer.Stop()
        timer.Reset(0.001)
        until(lambda: len(called) == 2)
        assert called == [1, 2]
        with pytest.raises(TypeError):
            t.AfterFunc(1, None)  # type: ignore[arg-type]

    run(main)


def test_a_timer_of_before_run() -> None:
    """Made outside of a fiber, it counts from then."""
    after = t.After(0.005)
    begin = time.monotonic()
    time.sleep(0.006)
    assert run(after.recv)[1]
    assert time.monotonic() - begin >= 0.005
