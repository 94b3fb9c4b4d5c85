"""JoinSet and gather: fibers that don't outlive the block which started them."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import pytest
from fiber_support import LIMIT, parked, run
from socket_support import failure

import runloom
import runloom.sync as sync
import runloom_c
from runloom.sync import JoinSet, gather


def forever() -> None:
    sync.sleep(LIMIT)
    raise AssertionError("nothing has ended the wait")


def fail() -> None:
    sync.sleep(0.001)
    raise ZeroDivisionError


def test_the_block_waits_for_all() -> None:
    def main() -> None:
        done: list[int] = []
        with JoinSet[None]() as tasks:
            for each in range(5):
                tasks.spawn(lambda each: (sync.sleep(0.001 * each), done.append(each)), each)
            assert len(tasks) == 5
        assert len(tasks) == 0
        assert done == [0, 1, 2, 3, 4]
        with JoinSet[None]():
            pass

    run(main)


def test_the_first_failure_ends_all() -> None:
    def main() -> None:
        ended: list[str] = []

        def child() -> None:
            try:
                forever()
            finally:
                ended.append("child")

        with pytest.raises(ZeroDivisionError), JoinSet[None]() as tasks:
            tasks.spawn(child)
            tasks.spawn(fail)
            tasks.spawn(child)
            try:
                forever()
            finally:
                ended.append("block")
        assert sorted(ended) == ["block", "child", "child"]
        # Also when the block has nothing to wait for.
        with pytest.raises(ZeroDivisionError), JoinSet[None]() as tasks:
            tasks.spawn(fail)
        with pytest.raises(ZeroDivisionError), JoinSet[None]() as tasks:
            tasks.spawn(lambda: 1 // 0)
            tasks.spawn(child)

    run(main)


def test_a_block_that_raises_ends_all() -> None:
    def main() -> None:
        ended: list[int] = []

        def child() -> None:
            try:
                forever()
            finally:
                with runloom.shield():
                    sync.sleep(0.002)  # it is waited for
                    ended.append(1)

        with pytest.raises(KeyError, match="block"), JoinSet[None]() as tasks:
            tasks.spawn(child)
            sync.yield_now()
            raise KeyError("block")
        assert ended == [1]

    run(main)


def test_none_outlives_a_cancelled_block() -> None:
    def main() -> None:
        log: list[str] = []

        def child() -> None:
            try:
                forever()
            finally:
                log.append("child ended")

        def parent() -> None:
            try:
                with JoinSet[None]() as tasks:
                    tasks.spawn(child)
                    tasks.spawn(child)
            finally:
                log.append("parent ended")

        fiber = runloom_c.go(parent)
        parked(fiber)
        fiber.cancel()
        with pytest.raises(runloom.Cancelled):
            fiber.join()
        assert log == ["child ended", "child ended", "parent ended"]
        with pytest.raises(TimeoutError), runloom.timeout(0.005), JoinSet[None]() as tasks:
            tasks.spawn(child)
        assert log[3:] == ["child ended"]

    run(main)


def test_a_child_may_be_cancelled_alone() -> None:
    def main() -> None:
        with JoinSet[None]() as tasks:
            one = tasks.spawn(forever)
            other = tasks.spawn(sync.sleep, 0.002)
            sync.yield_now()
            one.cancel()
        assert other.done
        assert isinstance(one.error, runloom.Cancelled)
        # Before it began.
        with JoinSet[None]() as tasks:
            tasks.spawn(forever).cancel()

    run(main)


def test_cancel_ends_the_children_and_not_the_block() -> None:
    def main() -> None:
        with JoinSet[None]() as tasks:
            for _ in range(3):
                tasks.spawn(forever)
            sync.yield_now()
            tasks.spawn(forever)  # it has not begun
            tasks.cancel()
            late = tasks.spawn(forever)
            sync.sleep(0.001)
        assert late.done

    run(main)


def test_other_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda each: reports.append(each.exc_value))

    def main() -> None:
        def child() -> None:
            try:
                forever()
            finally:
                raise KeyError("while it was cancelled")

        with pytest.raises(ZeroDivisionError), JoinSet[None]() as tasks:
            tasks.spawn(child)
            tasks.spawn(fail)

    run(main)
    gc.collect()
    assert [type(each) for each in reports] == [KeyError]


def test_results_in_the_order_of_their_coming() -> None:
    def main() -> None:
        def after(seconds: float) -> float:
            sync.sleep(seconds)
            return seconds

        with JoinSet[float](keep_results=True) as tasks:
            for each in (0.009, 0.003, 0.006):
                tasks.spawn(after, each)
            with pytest.raises(TimeoutError):
                tasks.next(0.0001)
            assert tasks.next() == 0.003
            assert list(tasks) == [0.006, 0.009]
            with pytest.raises(StopIteration):
                tasks.next()
        with JoinSet[None](keep_results=True) as tasks:
            tasks.spawn(forever)
            tasks.spawn(forever)
            sync.yield_now()
            tasks.spawn(forever)
            tasks.cancel()
            with pytest.raises(runloom.Cancelled):
                tasks.next()
        with JoinSet[None]() as tasks, pytest.raises(RuntimeError, match="keep_results"):
            tasks.next()

    run(main)


def test_without_a_block() -> None:
    def main() -> None:
        tasks: JoinSet[None] = JoinSet()
        tasks.spawn(sync.sleep, 0.002)
        assert not tasks.wait(0.0001)
        assert tasks.wait()
        tasks.spawn(fail)
        tasks.spawn(forever)
        with pytest.raises(ZeroDivisionError):
            tasks.wait()

    run(main)


def test_misuse() -> None:
    def main() -> None:
        with JoinSet[None]() as tasks:
            assert isinstance(failure(tasks.__enter__), RuntimeError)
        with pytest.raises(RuntimeError, match="has ended"):
            tasks.spawn(forever)
        with pytest.raises(RuntimeError, match="entered once"), tasks:
            pass

    run(main)
    with pytest.raises(RuntimeError, match="fiber"), JoinSet[None]():
        pass


def test_nested_sets() -> None:
    def main() -> None:
        def inner() -> None:
            with JoinSet[None]() as tasks:
                tasks.spawn(forever)
                tasks.spawn(forever)

        with pytest.raises(ZeroDivisionError), JoinSet[None]() as tasks:
            tasks.spawn(inner)
            tasks.spawn(inner)
            tasks.spawn(fail)
        assert runloom_c.fiber_count() == 1

    run(main)


def test_many_children() -> None:
    def main() -> None:
        count = 2000
        total: list[int] = []
        with JoinSet[None]() as tasks:
            for each in range(count):
                tasks.spawn(lambda each: (sync.yield_now(), total.append(each)), each)
        assert len(total) == count

    run(main)


def test_gather() -> None:
    def main() -> None:
        begin = time.monotonic()
        assert gather(lambda: (sync.sleep(0.01), 1)[1], lambda: (sync.sleep(0.01), 2)[1]) == [1, 2]
        assert time.monotonic() - begin >= 0.01
        assert gather() == []
        with pytest.raises(ZeroDivisionError):
            gather(forever, fail)
        for wrong in ([forever, forever], 1):
            with pytest.raises(TypeError, match="takes functions, one after the other"):
                gather(forever, wrong)  # type: ignore[arg-type]

    run(main)
