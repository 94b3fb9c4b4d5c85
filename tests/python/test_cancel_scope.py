"""Scopes, time limits and shields."""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fiber_support import LIMIT, parked, run, until
from socket_support import failure, pair

import runloom
import runloom.sync as sync
import runloom_c
from runloom import Cancelled, CancelScope, shield, timeout


def forever() -> None:
    sync.sleep(LIMIT)
    raise AssertionError("nothing has ended the wait")


# ---------------------------------------------------------------- what they end


def taken(primitive: Any) -> Any:
    primitive.acquire()
    return primitive


def waits() -> list[tuple[str, Callable[[Any], Any]]]:
    """Calls that wait for ever, each by its name; they get a socket that says nothing."""

    def condition(_: Any) -> None:
        ready = sync.Condition()
        with ready:
            ready.wait()

    def condition_for(_: Any) -> None:
        ready = sync.Condition()
        with ready:
            ready.wait_for(lambda: False, timeout=LIMIT)

    def settimeout(sock: Any) -> None:
        sock.settimeout(LIMIT)
        sock.recv(1)

    def fill(sock: Any) -> None:
        while True:
            sock.sendall(bytes(1 << 20))

    return [
        ("sleep", lambda _: sync.sleep(LIMIT)),
        ("park", lambda _: sync.park()),
        ("park with a timeout", lambda _: sync.park(LIMIT)),
        ("park_self", lambda _: runloom_c.park_self()),
        ("recv", lambda sock: sock.recv(1)),
        ("recv with a timeout", settimeout),
        ("recv_into", lambda sock: sock.recv_into(bytearray(1))),
        ("sendall", fill),
        ("wait_fd", lambda sock: runloom.wait_fd(sock.fileno(), 1)),
        ("wait_fd with a timeout", lambda sock: runloom.wait_fd(sock.fileno(), 1, LIMIT * 1000)),
        ("lock", lambda _: taken(sync.Lock()).acquire()),
        ("lock with a timeout", lambda _: taken(sync.Lock()).acquire(timeout=LIMIT)),
        ("mutex", lambda _: (mutex := runloom.Mutex()) and (mutex.lock(), mutex.lock())),
        ("event", lambda _: sync.Event().wait()),
        ("event with a timeout", lambda _: sync.Event().wait(LIMIT)),
        ("semaphore", lambda _: taken(sync.Semaphore(1)).acquire()),
        ("semaphore with a timeout", lambda _: taken(sync.Semaphore(1)).acquire(1, LIMIT)),
        ("condition", condition),
        ("condition with a predicate", condition_for),
        ("chan recv", lambda _: sync.Chan(0).recv()),
        ("chan send", lambda _: sync.Chan(0).send(1)),
        ("select", lambda _: sync.select([("recv", sync.Chan(0))])),
        ("join", lambda _: runloom_c.go(lambda: sync.sleep(0.5)).join()),
        ("join with a timeout", lambda _: runloom_c.go(lambda: sync.sleep(0.5)).join(LIMIT)),
        ("accept", lambda _: sync.tcp_listen("127.0.0.1", 0).accept()),
    ]


@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.parametrize(("name", "wait"), waits(), ids=[name for name, _ in waits()])
def test_every_wait_ends_with_its_scope(name: str, wait: Callable[[Any], Any]) -> None:
    def main() -> None:
        runloom_c.set_deadlock_mode(0)
        with pair() as (ours, _):
            with CancelScope(0.005) as by_time:
                wait(ours)
            assert by_time.cancelled_caught
        with pair() as (ours, _), pytest.raises(TimeoutError), timeout(0.005):
            wait(ours)
        with pair() as (ours, _):
            with CancelScope() as by_hand:
                canceller = runloom_c.go(lambda: (sync.sleep(0.005), by_hand.cancel()))
                error = failure(wait, ours)
                assert isinstance(error, Cancelled), error
                # Level-triggered.
                with pair() as (other, _), pytest.raises(Cancelled):
                    wait(other)
            assert not by_hand.cancelled_caught
            canceller.join()

    run(main)


def test_a_call_that_need_not_wait_goes_on() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            peer.sendall(b"x")
            runloom.wait_fd(ours.fileno(), 1)
            with CancelScope(0) as scope:
                assert ours.recv(1) == b"x"
                lock = sync.Lock()
                assert lock.acquire()
                assert not lock.acquire(False)
                assert sync.Semaphore(1).acquire()
                channel: sync.Chan[int] = sync.Chan(1)
                channel.send(1)
                assert channel.recv() == (1, True)
                event = sync.Event()
                event.set()
                assert event.wait()
            assert not scope.cancelled_caught
            assert scope.cancel_called

    run(main)


def test_a_call_that_never_waits_says_so() -> None:
    def main() -> None:
        by_hand = CancelScope()
        by_hand.cancel()
        for scope in (CancelScope(0), by_hand):
            with pair() as (ours, _), scope:
                ours.setblocking(False)
                with pytest.raises(BlockingIOError):
                    ours.recv(1)
                lock = taken(sync.Lock())
                assert not lock.acquire(False)
                assert not taken(sync.Semaphore(1)).try_acquire()
                assert sync.Chan[int](0).try_recv() is None
                assert not sync.Event().is_set()
                assert runloom.wait_fd(ours.fileno(), 1, 0) == 0
                assert sync.select([("recv", sync.Chan[int](0))], True) == -1
            assert not scope.cancelled_caught

    run(main)


# ---------------------------------------------------------------- borders


def test_a_timeout_raises_at_its_border() -> None:
    def main() -> None:
        begin = time.monotonic()
        with pytest.raises(TimeoutError) as caught, timeout(0.02):
            with pytest.raises(Cancelled):
                forever()
            forever()
        assert time.monotonic() - begin >= 0.02
        assert isinstance(caught.value.__cause__, Cancelled)
        with timeout(None):
            sync.sleep(0.001)
        with timeout(LIMIT) as scope:
            pass
        assert not scope.cancel_called

    run(main)


def test_a_block_that_ends_late_by_itself_is_no_timeout() -> None:
    def main() -> None:
        with timeout(0) as scope:
            pass
        assert scope.cancel_called
        assert not scope.cancelled_caught
        with pytest.raises(ZeroDivisionError), timeout(0):
            raise ZeroDivisionError

    run(main)


def test_the_inner_of_two_scopes_ends_first() -> None:
    def main() -> None:
        with CancelScope() as outer:
            with CancelScope(0.002) as inner:
                forever()
            assert inner.cancelled_caught
            sync.sleep(0.001)  # the outer one is well
        assert not outer.cancelled_caught
        # Both at once: the outer one's end is the end of both.
        with CancelScope() as outer:
            with CancelScope() as inner:
                outer.cancel()
                inner.cancel()
                forever()
            raise AssertionError("the inner scope has caught the outer one's")
        assert outer.cancelled_caught
        assert not inner.cancelled_caught
        with pytest.raises(TimeoutError), timeout(0.001), timeout(LIMIT):
            forever()
        # The inner time is longer.
        with CancelScope(0.001) as outer, CancelScope(LIMIT) as inner:
            forever()
        assert outer.cancelled_caught
        assert not inner.cancelled_caught

    run(main)


def test_a_cancel_of_the_fiber_goes_through_scopes() -> None:
    def main() -> None:
        ended = []

        def victim() -> None:
            try:
                with CancelScope(LIMIT):
                    forever()
            finally:
                ended.append(1)

        fiber = runloom_c.go(victim)
        parked(fiber)
        fiber.cancel()
        with pytest.raises(Cancelled):
            fiber.join()
        assert ended == [1]

    run(main)


def test_a_shield_hides_what_is_around() -> None:
    def main() -> None:
        log = []

        def victim() -> None:
            try:
                forever()
            finally:
                with shield():
                    sync.sleep(0.002)
                    log.append("cleaned")
                with shield(0.002) as scope:  # bounded
                    forever()
                assert scope.cancelled_caught
                log.append("bounded")
                with pytest.raises(Cancelled):
                    sync.sleep(0)
                log.append("open again")

        fiber = runloom_c.go(victim)
        parked(fiber)
        fiber.cancel()
        with pytest.raises(Cancelled):
            fiber.join()
        assert log == ["cleaned", "bounded", "open again"]
        with CancelScope(0) as outer:
            with CancelScope(shield=True) as inner:
                assert inner.shield
                sync.sleep(0.001)
                inner.cancel()
                forever()
            assert inner.cancelled_caught
            forever()
        assert outer.cancelled_caught

    run(main)


def test_a_scope_that_was_cancelled_before() -> None:
    def main() -> None:
        scope = CancelScope()
        scope.cancel()
        with scope:
            forever()
        assert scope.cancelled_caught

    run(main)


def test_deadlines_can_be_moved() -> None:
    def main() -> None:
        with CancelScope() as scope:
            assert scope.deadline == math.inf
            runloom_c.go(lambda: setattr(scope, "deadline", time.monotonic() + 0.002))
            forever()
        assert scope.cancelled_caught
        with timeout(0.003) as later:
            later.deadline = time.monotonic() + LIMIT
            sync.sleep(0.006)
        with pytest.raises(TimeoutError), timeout(LIMIT) as sooner:
            sooner.deadline = 0
            forever()
        when = time.monotonic() + 0.002
        with CancelScope(LIMIT, deadline=when) as both:
            assert both.deadline == when
            forever()
        assert time.monotonic() >= when

    run(main)


def test_cancel_from_another_thread() -> None:
    def main() -> None:
        with CancelScope() as scope:
            thread = threading.Thread(target=lambda: (time.sleep(0.005), scope.cancel()))
            thread.start()
            forever()
        thread.join()
        assert scope.cancelled_caught

    run(main)


def test_an_interrupt_is_no_cancel() -> None:
    """Ctrl-C inside of a scope."""

    def main() -> None:
        with pytest.raises(KeyboardInterrupt), timeout(LIMIT):
            os.kill(os.getpid(), signal.SIGINT)
            forever()

    run(main)


# ---------------------------------------------------------------- misuse


def test_wrong_arguments() -> None:
    for wrong in ("1", b"", object()):
        with pytest.raises(TypeError):
            CancelScope(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        CancelScope(math.nan)
    with pytest.raises(TypeError):
        CancelScope(1, 2)  # type: ignore[misc]
    with pytest.raises(TypeError):
        timeout()  # type: ignore[call-arg]
    scope = CancelScope(-1)
    assert scope.cancel_called
    with pytest.raises(AttributeError):
        del scope.deadline
    with pytest.raises(TypeError):
        scope.deadline = "x"  # type: ignore[assignment]
    scope.deadline = math.inf
    assert not scope.cancel_called
    scope.deadline = 1e300
    scope.deadline = -1e300
    assert "new, cancelled" in repr(scope)
    with pytest.raises(RuntimeError, match="needs a fiber"), CancelScope():
        pass


def test_a_scope_is_entered_once() -> None:
    def main() -> None:
        scope = CancelScope()
        with scope, pytest.raises(RuntimeError, match="entered once"), scope:
            pass
        with pytest.raises(RuntimeError, match="entered once"), scope:
            pass
        assert scope.__exit__(None, None, None) is False
        with pytest.raises(TypeError):
            scope.__exit__()  # type: ignore[call-arg]

    run(main)


@contextmanager
def scoped() -> Iterator[CancelScope]:
    with CancelScope() as scope:
        yield scope


def test_scopes_that_are_left_in_the_wrong_order() -> None:
    def main() -> None:
        outer, inner = CancelScope(), CancelScope()
        outer.__enter__()
        inner.__enter__()
        inner.cancel()
        with pytest.raises(RuntimeError, match="before one that is inside"):
            outer.__exit__(None, None, None)
        sync.sleep(0)  # neither reaches it any more
        assert inner.__exit__(None, None, None) is False

    run(main)


def test_a_scope_that_is_left_on_another_fiber() -> None:
    def main() -> None:
        manager = scoped()
        manager.__enter__()
        with pytest.raises(RuntimeError, match="on another fiber"):
            runloom_c.go(lambda: manager.__exit__(None, None, None)).join()

    run(main)


def test_a_generator_that_outlives_its_fiber() -> None:
    def scopes() -> Iterator[CancelScope]:
        with CancelScope() as scope, timeout(LIMIT):
            yield scope
            yield scope

    def main() -> None:
        kept: list[Iterator[CancelScope]] = []

        def enter() -> None:
            kept.append(scopes())
            next(kept[0])

        runloom_c.go(enter).join()
        scope = next(kept[0])
        scope.cancel()  # of nobody
        scope.deadline = 0
        sync.sleep(0)
        kept.clear()
        gc.collect()
        assert "left" in repr(scope)
        # Entered by hand and forgotten.
        fiber = runloom_c.go(lambda: CancelScope(0).__enter__())
        fiber.join()

    run(main)


def test_a_scope_ends_with_its_generator() -> None:
    def numbers() -> Iterator[int]:
        with CancelScope():
            yield 1

    def main() -> None:
        generator = numbers()
        next(generator)
        generator.close()
        with CancelScope() as scope:
            scope.cancel()
            forever()

    run(main)


def test_subclasses_and_weak_references() -> None:
    import copy
    import pickle
    import weakref

    class Own(CancelScope):
        pass

    scope = Own(1)
    assert weakref.ref(scope)() is scope
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        assert isinstance(failure(call, CancelScope()), TypeError)


def test_a_cancelled_child_is_not_the_scopes_own() -> None:
    def main() -> None:
        child = runloom_c.go(forever)
        parked(child)
        child.cancel()
        until(lambda: child.done)
        with pytest.raises(Cancelled), CancelScope():
            child.join()

    run(main)


def test_many_scopes_leave_nothing() -> None:
    def main() -> None:
        def nested(depth: int) -> None:
            if depth:
                with CancelScope(), timeout(LIMIT), shield():
                    nested(depth - 1)
            else:
                sync.sleep(0)

        for _ in range(50):
            nested(20)
        with socket.socket():
            pass

    run(main)
