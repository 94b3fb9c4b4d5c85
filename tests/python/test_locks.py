"""Lock, RLock, Mutex, Event, Condition, Semaphore: for fibers, OS threads, and both."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from fiber_support import LIMIT, output, parked, run, run_all

import runloom
from runloom.sync import Condition, Event, Lock, Mutex, RLock, Semaphore
from runloom_c import Chan, current_g, go, sched_sleep, sched_yield


class Thread(threading.Thread):
    """A thread whose exception comes out of join()."""

    def __init__(self, target: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.target = target
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.target()
        except BaseException as error:
            self.error = error

    def join(self, timeout: float | None = LIMIT) -> None:
        super().join(timeout)
        assert not self.is_alive(), "the thread hangs"
        if self.error is not None:
            raise self.error


# ---------------------------------------------------------------- locks


@pytest.mark.parametrize("make", [Lock, RLock])
def test_exclusion(make: Callable[[], Any]) -> None:
    lock, inside, most = make(), [0], [0]

    def work() -> None:
        for _ in range(10):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                sched_yield()
                inside[0] -= 1

    run_all(*[work] * 10)
    assert most == [1]
    assert not lock.locked()


def test_a_lock_is_handed_over_in_order() -> None:
    order: list[int] = []

    def main() -> None:
        lock = Lock()
        lock.acquire()

        def wait(i: int) -> None:
            with lock:
                order.append(i)

        waiters = []
        for i in range(5):
            waiters.append(runloom.fiber(wait, i))
            parked(waiters[-1])
        lock.release()
        assert lock.locked()  # it has passed to the first waiter
        assert not lock.acquire(blocking=False)
        for g in waiters:
            g.join()

    run(main)
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("make", [Lock, RLock])
def test_acquire_variants(make: Callable[[], Any]) -> None:
    def main() -> None:
        lock = make()
        assert lock.acquire() is True

        def other() -> None:
            assert lock.acquire(False) is False
            assert lock.acquire(blocking=False) is False
            begin = time.monotonic()
            assert lock.acquire(timeout=0.01) is False
            assert time.monotonic() - begin >= 0.01
            assert lock.acquire(True, 0) is False
            with pytest.raises(ValueError, match="non-blocking"):
                lock.acquire(False, 1)
            with pytest.raises(ValueError, match="non-negative"):
                lock.acquire(timeout=-2)
            with pytest.raises(TypeError, match="timeout must be a number"):
                lock.acquire(timeout="1")
            assert lock.acquire(timeout=None) is True
            lock.release()

        g = go(other)
        sched_sleep(0.05)
        lock.release()
        g.join()

    run(main)


def test_release_of_what_is_not_locked() -> None:
    for lock in (Lock(), Mutex()):
        release = getattr(lock, "release", None) or lock.unlock  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match="release unlocked lock"):
            release()
    with pytest.raises(RuntimeError, match="un-acquired"):
        RLock().release()


def test_an_rlock_belongs_to_a_fiber() -> None:
    def main() -> None:
        lock = RLock()
        with lock, lock:
            assert lock._is_owned()

            def other() -> None:
                assert not lock._is_owned()
                assert lock.acquire(False) is False
                with pytest.raises(RuntimeError, match="un-acquired"):
                    lock.release()
                with lock:
                    assert lock._is_owned()

            g = go(other)
            parked(g)
        g.join()
        assert not lock.locked()

    run(main)


def test_an_rlock_tells_a_fiber_from_its_thread() -> None:
    lock = RLock()
    lock.acquire()
    assert run(lambda: lock.acquire(False)) is False
    lock.release()


def test_mutex() -> None:
    def main() -> None:
        mutex = Mutex()
        mutex.lock()
        assert mutex.locked()
        assert not mutex.try_lock()
        g = go(mutex.lock)
        parked(g)
        mutex.unlock()
        g.join()
        mutex.unlock()
        assert mutex.try_lock()
        mutex.unlock()
        with mutex as entered:
            assert entered is mutex

    run(main)


def test_a_cancelled_waiter_has_no_lock() -> None:
    def main() -> None:
        lock = Lock()
        lock.acquire()
        g, h = go(lock.acquire), go(lock.acquire)
        parked(g, h)
        g.cancel()
        with pytest.raises(runloom.Cancelled):
            g.join()
        lock.release()
        assert h.join() is True

    run(main)


@pytest.mark.parametrize("make", [Lock, RLock])
def test_fibers_and_threads_exclude_each_other(make: Callable[[], Any]) -> None:
    lock, inside, count = make(), [0], [0]

    def work(pause: Callable[[], object]) -> None:
        for _ in range(200):
            with lock:
                inside[0] += 1
                assert inside[0] == 1
                count[0] += 1
                if count[0] % 20 == 0:
                    pause()
                inside[0] -= 1

    def main() -> None:
        threads = [Thread(lambda: work(lambda: time.sleep(0.0002))) for _ in range(3)]
        for g in [go(lambda: work(sched_yield)) for _ in range(3)]:
            g.join()
        while any(thread.is_alive() for thread in threads):
            sched_sleep(0.001)
        for thread in threads:
            thread.join()

    run(main)
    assert count == [1200]


def test_locks_between_plain_threads() -> None:
    lock, total = Lock(), [0]

    def work() -> None:
        for _ in range(500):
            with lock:
                value = total[0]
                if value % 50 == 0:
                    time.sleep(0)
                total[0] = value + 1

    for thread in [Thread(work) for _ in range(4)]:
        thread.join()
    assert total == [2_000]


def test_a_thread_that_waits_lets_others_run() -> None:
    lock = Lock()
    lock.acquire()
    thread = Thread(lambda: lock.acquire(timeout=LIMIT))
    end = time.monotonic() + 0.05
    while time.monotonic() < end:  # it holds no GIL
        pass
    lock.release()
    thread.join()
    assert lock.acquire(timeout=0.01) is False


# ---------------------------------------------------------------- events


def test_event() -> None:
    def main() -> None:
        event = Event()
        assert not event.is_set()
        assert event.wait(0.001) is False
        assert event.wait(timeout=0) is False
        waiters = [go(event.wait) for _ in range(5)]
        parked(*waiters)
        event.set()
        assert event.is_set()
        assert [g.join() for g in waiters] == [True] * 5
        assert event.wait() is True
        event.clear()
        assert event.wait(0) is False

    run(main)


def test_a_pulse_loses_nobody() -> None:
    def main() -> None:
        event = Event()
        waiters = [go(event.wait) for _ in range(5)]
        parked(*waiters)
        event.set()
        event.clear()
        assert [g.join() for g in waiters] == [True] * 5

    run(main)


def test_a_thread_sets_an_event_that_fibers_wait_for() -> None:
    # Nothing but that thread can wake them, and run() knows.
    event = Event()

    def main() -> None:
        thread = Thread(lambda: (time.sleep(0.05), event.set()))
        waiters = [go(event.wait) for _ in range(3)]
        assert [g.join() for g in waiters] == [True] * 3
        thread.join()

    run(main)


def test_a_fiber_sets_an_event_that_threads_wait_for() -> None:
    event, seen = Event(), []

    def main() -> None:
        threads = [Thread(lambda: seen.append(event.wait(LIMIT))) for _ in range(3)]
        sched_sleep(0.02)
        event.set()
        while any(thread.is_alive() for thread in threads):
            sched_sleep(0.001)
        for thread in threads:
            thread.join()

    run(main)
    assert seen == [True] * 3


def test_without_other_threads_a_wait_for_an_event_is_a_deadlock() -> None:
    code = """
        import runloom_c
        runloom_c.set_deadlock_mode(2)
        runloom_c.go(runloom_c.Event().wait)
        try: runloom_c.run()
        except RuntimeError as error: print(error)
    """
    assert output(code) == "all fibers are blocked -- deadlock (1 parked, none runnable)\n"


# ---------------------------------------------------------------- conditions


@pytest.mark.parametrize("lock", [None, Lock, RLock])
def test_condition(lock: Callable[[], Any] | None) -> None:
    def main() -> None:
        condition = Condition(lock() if lock else None)
        queue: list[int] = []
        got: list[int] = []

        def consume() -> None:
            with condition:
                while not queue:
                    condition.wait()
                got.append(queue.pop(0))

        consumers = [go(consume) for _ in range(4)]
        parked(*consumers)
        with condition:
            queue.extend(range(4))
            condition.notify(2)
        sched_yield()
        with condition:
            condition.notify_all()
        for g in consumers:
            g.join()
        assert sorted(got) == [0, 1, 2, 3]
        assert not condition.locked()

    run(main)


def test_condition_timeouts_and_predicates() -> None:
    def main() -> None:
        condition = Condition()
        with condition:
            assert condition.wait(0.001) is False
            assert condition.locked()
            assert condition.wait_for(lambda: "truthy") == "truthy"
            assert condition.wait_for(list, timeout=0.001) == []
            assert condition.wait_for(lambda: 0, 0) == 0
        box: list[int] = []

        def fill() -> None:
            for i in range(3):
                sched_sleep(0.001)
                with condition:
                    box.append(i)
                    condition.notify()

        go(fill)
        with condition:
            assert condition.wait_for(lambda: len(box) == 3, timeout=LIMIT) is True

    run(main)


def test_condition_misuse() -> None:
    condition = Condition()
    for call in (condition.wait, condition.notify, condition.notify_all):
        with pytest.raises(RuntimeError, match="un-acquired lock"):
            call()
    with pytest.raises(RuntimeError, match="un-acquired lock"):
        condition.release()
    with pytest.raises(TypeError, match="must be a runloom Lock or RLock, not _thread.lock"):  # noqa: RUF043
        Condition(threading.Lock())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at most 1 positional"):
        Condition(None, None)  # type: ignore[call-arg]


def test_a_cancelled_condition_wait_has_the_lock_again() -> None:
    held = []

    def main() -> None:
        condition = Condition()

        def wait() -> None:
            with condition:
                try:
                    condition.wait()
                finally:
                    held.append(condition.locked())

        g = go(wait)
        parked(g)
        with condition:
            g.cancel()
            sched_yield()
        with pytest.raises(runloom.Cancelled):
            g.join()
        assert not condition.locked()

    run(main)
    assert held == [True]


def test_condition_between_threads_and_fibers() -> None:
    condition, queue, got = Condition(), [], []  # type: ignore[var-annotated]

    def consume(count: int) -> None:
        for _ in range(count):
            with condition:
                condition.wait_for(lambda: queue, LIMIT)
                got.append(queue.pop())

    def produce(count: int, pause: Callable[[], object]) -> None:
        for i in range(count):
            with condition:
                queue.append(i)
                condition.notify()
            pause()

    def main() -> None:
        threads = [
            Thread(lambda: consume(100)),
            Thread(lambda: produce(100, lambda: time.sleep(0.0001))),
        ]
        for g in [go(lambda: consume(100)), go(lambda: produce(100, sched_yield))]:
            g.join()
        while any(thread.is_alive() for thread in threads):
            sched_sleep(0.001)
        for thread in threads:
            thread.join()

    run(main)
    assert sorted(got) == sorted([*range(100)] * 2)


def test_an_rlock_of_a_condition_is_freed_whatever_its_depth() -> None:
    def main() -> None:
        lock = RLock()
        condition = Condition(lock)

        def wait() -> bool:
            with lock, lock, condition:
                return condition.wait(LIMIT)

        g = go(wait)
        parked(g)
        with condition:
            condition.notify()
        assert g.join() is True
        assert not lock.locked()

    run(main)


# ---------------------------------------------------------------- semaphores


def test_semaphore() -> None:
    def main() -> None:
        semaphore = Semaphore(3)
        assert (semaphore.value, semaphore.capacity, semaphore.locked()) == (3, 3, False)
        assert semaphore.acquire() is True
        assert semaphore.acquire(2) is True
        assert semaphore.locked()
        assert semaphore.acquire(timeout=0.001) is False
        assert semaphore.acquire(1, 0) is False
        assert semaphore.try_acquire() is False
        semaphore.release(2)
        assert semaphore.try_acquire(2) is True
        semaphore.release(3)
        with semaphore:
            assert semaphore.value == 2
        assert semaphore.value == 3

    run(main)


def test_semaphore_errors() -> None:
    semaphore = Semaphore(2)
    with pytest.raises(ValueError, match="released too many times"):
        semaphore.release()
    semaphore.acquire()
    with pytest.raises(ValueError, match="released too many times"):
        semaphore.release(2)
    assert semaphore.value == 1
    for call in (semaphore.acquire, semaphore.try_acquire):
        with pytest.raises(ValueError, match=r"more permits than the semaphore has \(2\)"):
            call(3)
        with pytest.raises(ValueError, match="more permits"):
            call(1 << 40)
        with pytest.raises(ValueError, match="n must be at least 1"):
            call(0)
    with pytest.raises(ValueError, match="n must be at least 1"):
        semaphore.release(-1)
    with pytest.raises(ValueError, match="must be >= 0"):
        Semaphore(-1)
    with pytest.raises(ValueError, match="too large"):
        Semaphore(1 << 32)
    assert Semaphore().value == 1
    assert Semaphore(value=0).locked()


def test_who_wants_many_permits_is_not_overtaken() -> None:
    order = []

    def main() -> None:
        semaphore = Semaphore(3)
        semaphore.acquire(3)

        def take(n: int) -> None:
            semaphore.acquire(n)
            order.append(n)

        many, one = runloom.fiber(take, 3), runloom.fiber(take, 1)
        parked(many, one)
        semaphore.release(1)
        sched_yield()
        assert order == []
        assert semaphore.try_acquire() is False
        semaphore.release(2)
        many.join()
        semaphore.release(3)
        one.join()

    run(main)
    assert order == [3, 1]


def test_a_semaphore_bounds_fibers_and_threads_together() -> None:
    semaphore, guard = Semaphore(2), threading.Lock()
    inside, most = [0], [0]

    def work(pause: Callable[[], object]) -> None:
        for _ in range(50):
            with semaphore:
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                pause()
                with guard:
                    inside[0] -= 1

    def main() -> None:
        threads = [Thread(lambda: work(lambda: time.sleep(0.0001))) for _ in range(3)]
        for g in [go(lambda: work(sched_yield)) for _ in range(3)]:
            g.join()
        while any(thread.is_alive() for thread in threads):
            sched_sleep(0.001)
        for thread in threads:
            thread.join()

    run(main)
    assert most == [2]
    assert semaphore.value == 2


# ---------------------------------------------------------------- all of them

MAKERS: list[Callable[[], Any]] = [Lock, RLock, Mutex, Event, Condition, Semaphore, Chan]


@pytest.mark.parametrize("make", MAKERS)
def test_objects_are_weakly_referable_and_subclassable(make: Any) -> None:
    plain = make()
    gone = weakref.ref(plain)
    del plain
    assert gone() is None

    class Sub(make):  # type: ignore[misc]
        def __init__(self) -> None:
            self.extra = self

    sub = Sub()
    assert sub.extra is sub
    gone = weakref.ref(sub)
    del sub
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("make", [Lock, RLock, Mutex, Event])
def test_constructors_that_take_nothing(make: Any) -> None:
    with pytest.raises(TypeError, match="takes no arguments"):
        make(1)
    with pytest.raises(TypeError, match="takes no arguments"):
        make(x=1)
    assert repr(make())


@pytest.mark.parametrize("make", MAKERS)
def test_types_cannot_be_changed(make: Any) -> None:
    with pytest.raises(TypeError):
        make.extra = 1


@pytest.mark.version_sensitive
@pytest.mark.parametrize("make", MAKERS)
def test_P12_making_many_leaks_nothing(make: Any) -> None:
    make()
    before = sys.getrefcount(make)
    for _ in range(1_000):
        make()
    assert abs(sys.getrefcount(make) - before) <= 1


def test_a_wait_in_a_thread_without_a_scheduler() -> None:
    event = Event()
    thread = Thread(lambda: (event.wait(0.01), current_g() is None or 1 / 0))
    thread.join()
