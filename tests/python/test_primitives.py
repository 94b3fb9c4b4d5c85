"""WaitGroup, RWMutex, Once, Group, Watch and Future, between fibers and threads."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from fiber_support import LIMIT, parked, run
from socket_support import failure

import runloom
import runloom.sync as sync
import runloom_c

# ---------------------------------------------------------------- WaitGroup


def test_a_wait_group_waits_for_all() -> None:
    def main() -> None:
        group = sync.WaitGroup()
        done: list[int] = []
        for each in range(10):
            group.go(lambda each=each: (sync.sleep(0.001 * each), done.append(each)))
        assert group.count == 10
        assert group.wait()
        assert sorted(done) == list(range(10))
        assert group.wait(0)
        group.add(2)
        assert not group.wait(0.001)
        group.done()
        group.add(-1)
        assert group.wait(0)
        # It can be used again.
        waiter = runloom_c.go(lambda: (group.add(), group.wait()))
        parked(waiter)
        group.done()
        waiter.join()

    run(main)


def test_a_wait_group_is_never_below_zero() -> None:
    group = sync.WaitGroup(1)
    with pytest.raises(ValueError, match="below zero"):
        group.add(-2)
    group.done()
    with pytest.raises(ValueError, match="below zero"):
        group.done()
    with pytest.raises(TypeError):
        group.add("1")  # type: ignore[arg-type]
    assert group.count == 0


def test_a_wait_group_counts_what_fails() -> None:
    def main() -> None:
        group = sync.WaitGroup()
        errors = runloom_c.go(lambda: None)
        group.go(failure, lambda: 1 / 0)
        errors.join()
        assert group.wait(LIMIT)

    run(main)


def test_threads_and_fibers_share_a_wait_group() -> None:
    def main() -> None:
        group = sync.WaitGroup(3)
        threads = [threading.Thread(target=lambda: (time.sleep(0.002), group.done()))
                   for _ in range(3)]  # fmt: skip
        for each in threads:
            each.start()
        assert group.wait(LIMIT)
        for each in threads:
            each.join()

    run(main)


# ---------------------------------------------------------------- RWMutex


def test_readers_share_and_writers_do_not() -> None:
    def main() -> None:
        lock = sync.RWMutex()
        log: list[str] = []

        def read(name: str) -> None:
            with lock.reader():
                log.append(f"+{name}")
                sync.sleep(0.002)
                log.append(f"-{name}")

        def write(name: str) -> None:
            with lock.writer():
                log.append(f"+{name}")
                sync.sleep(0.002)
                log.append(f"-{name}")

        fibers = [
            runloom_c.go(lambda: read("r1")),
            runloom_c.go(lambda: read("r2")),
            runloom_c.go(lambda: write("w")),
            runloom_c.go(lambda: read("r3")),
        ]
        for each in fibers:
            each.join()
        assert log[:2] == ["+r1", "+r2"]
        # A writer that waits goes before readers that come later, and nobody goes in between.
        assert log.index("-w") == log.index("+w") + 1
        assert log[-2:] == ["+r3", "-r3"]

    run(main)


def test_an_rw_mutex_is_tried_and_timed() -> None:
    def main() -> None:
        lock = sync.RWMutex()
        assert lock.try_rlock()
        assert lock.try_rlock()
        assert not lock.try_lock()
        assert not lock.lock(0.001)
        assert lock.try_rlock()  # the writer that gave up holds nobody up
        for _ in range(3):
            lock.runlock()
        assert lock.try_lock()
        assert not lock.try_rlock()
        assert not lock.rlock(0.001)
        assert not lock.try_lock()
        lock.unlock()
        with pytest.raises(RuntimeError):
            lock.unlock()
        with pytest.raises(RuntimeError):
            lock.runlock()
        # A writer that is cancelled while it waits lets the readers go on.
        assert lock.rlock()
        writer = runloom_c.go(lock.lock)
        parked(writer)
        reader = runloom_c.go(lock.rlock)
        parked(reader)
        writer.cancel()
        assert reader.join() is True

    run(main)


# ---------------------------------------------------------------- Once


def test_once_does_it_once() -> None:
    def main() -> None:
        once = sync.Once()
        calls: list[int] = []

        def slow() -> None:
            sync.sleep(0.002)
            calls.append(1)

        fibers = [runloom_c.go(lambda: (once.do(slow), calls[0])) for _ in range(5)]
        assert [each.join()[1] for each in fibers] == [1] * 5
        assert calls == [1]
        assert once.done
        failing = sync.Once()
        with pytest.raises(ZeroDivisionError):
            failing.do(lambda: 1 / 0)
        failing.do(lambda: calls.append(2))
        assert calls == [1]

    run(main)


def test_once_value_and_func() -> None:
    def main() -> None:
        calls: list[int] = []
        value = sync.once_value(lambda: (sync.sleep(0.001), calls.append(1), 42)[2])
        fibers = [runloom_c.go(value) for _ in range(3)]
        assert [each.join() for each in fibers] == [42] * 3
        assert calls == [1]
        failing = sync.once_func(lambda: (calls.append(2), 1 / 0))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                failing()
        assert calls == [1, 2]

    run(main)


# ---------------------------------------------------------------- Group


def test_those_who_ask_at_the_same_time_share_a_call() -> None:
    def main() -> None:
        group = sync.Group()
        calls: list[str] = []

        def look_up(key: str) -> str:
            calls.append(key)
            sync.sleep(0.002)
            return key.upper()

        def ask(key: str) -> tuple[str, bool]:
            return group.do(key, lambda: look_up(key))

        fibers = [runloom_c.go(lambda key=key: ask(key)) for key in ("a", "a", "b", "a")]
        answers = [each.join() for each in fibers]
        assert [each[0] for each in answers] == ["A", "A", "B", "A"]
        assert [each[1] for each in answers] == [True, True, False, True]
        assert calls == ["a", "b"]
        assert ask("a") == ("A", False)  # nothing is kept
        assert calls == ["a", "b", "a"]

    run(main)


def test_a_failing_call_fails_for_all() -> None:
    def main() -> None:
        group = sync.Group()

        def fail() -> None:
            sync.sleep(0.001)
            raise ZeroDivisionError

        fibers = [runloom_c.go(lambda: group.do(1, fail)) for _ in range(3)]
        for each in fibers:
            with pytest.raises(ZeroDivisionError):
                each.join()

    run(main)


def test_a_cancelled_call_is_taken_over() -> None:
    def main() -> None:
        group = sync.Group()
        calls: list[int] = []

        def work(number: int) -> int:
            calls.append(number)
            sync.sleep(0.005)
            return number

        first = runloom_c.go(lambda: group.do("k", lambda: work(1)))
        parked(first)
        second = runloom_c.go(lambda: group.do("k", lambda: work(2)))
        parked(second)
        first.cancel()
        with pytest.raises(runloom.Cancelled):
            first.join()
        assert second.join() == (2, False)
        assert calls == [1, 2]

    run(main)


def test_a_call_that_is_forgotten() -> None:
    def main() -> None:
        group = sync.Group()
        slow = runloom_c.go(lambda: group.do("k", lambda: (sync.sleep(0.003), "old")[1]))
        parked(slow)
        group.forget("k")
        group.forget("unknown")
        assert group.do("k", lambda: "new") == ("new", False)
        assert slow.join() == ("old", False)

    run(main)


# ---------------------------------------------------------------- Watch


def test_watchers_see_the_last_value() -> None:
    def main() -> None:
        watch = sync.Watch("a")
        assert watch.get() == ("a", 0)
        watcher = runloom_c.go(lambda: watch.wait_changed(0))
        parked(watcher)
        assert watch.set("b") == 1
        assert watch.set("c") == 2
        assert watcher.join() == ("c", 2)
        assert watch.wait_changed(1) == ("c", 2)
        assert watch.wait_changed(2, 0.001) is None
        assert watch.wait_changed(2, 0) is None

    run(main)


# ---------------------------------------------------------------- Future


def test_a_future_has_one_result() -> None:
    def main() -> None:
        future: sync.Future[int] = sync.Future()
        assert not future.done()
        waiting = [runloom_c.go(future.result) for _ in range(3)]
        parked(*waiting)
        seen: list[Any] = []
        future.add_done_callback(seen.append)
        future.set_result(7)
        assert [each.join() for each in waiting] == [7] * 3
        assert future.done()
        assert future.result() == 7
        assert future.exception() is None
        with pytest.raises(RuntimeError):
            future.set_result(8)
        with pytest.raises(RuntimeError):
            future.set_exception(ValueError())
        future.add_done_callback(seen.append)
        assert seen == [future, future]

    run(main)


def test_a_future_may_fail() -> None:
    def main() -> None:
        future: sync.Future[int] = sync.Future()
        with pytest.raises(TimeoutError):
            future.result(0.001)
        with pytest.raises(TypeError):
            future.set_exception("no exception")  # type: ignore[arg-type]
        error = ZeroDivisionError()
        future.set_exception(error)
        assert future.exception() is error
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                future.result()

    run(main)


def test_a_future_from_a_thread() -> None:
    def main() -> None:
        future: sync.Future[str] = sync.Future()
        thread = threading.Thread(target=lambda: (time.sleep(0.002), future.set_result("done")))
        thread.start()
        assert future.result(LIMIT) == "done"
        thread.join()

    run(main)
