"""Chan and select."""

from __future__ import annotations

import collections
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from fiber_support import LIMIT, parked, run, run_all

import runloom
import runloom.sync
import runloom_c
from runloom_c import Chan, go, sched_yield, select


def test_a_send_and_a_receive_meet() -> None:
    order: list[Any] = []

    def main() -> None:
        chan: Chan[int] = Chan()

        def sender() -> None:
            for i in range(3):
                chan.send(i)
                order.append(("sent", i))

        g = go(sender)
        parked(g)
        assert order == []
        for i in range(3):
            assert chan.recv() == (i, True)
            order.append(("received", i))
        g.join()

    run(main)
    assert [step for step in order if step[0] == "received"] == [("received", i) for i in range(3)]


def test_a_buffer_takes_values_without_a_receiver() -> None:
    def main() -> None:
        chan: Chan[int] = Chan(2)
        chan.send(1)
        chan.send(2)
        assert (len(chan), chan.capacity, chan.closed) == (2, 2, False)
        g = go(lambda: chan.send(3))
        parked(g)
        assert [chan.recv()[0] for _ in range(3)] == [1, 2, 3]
        g.join()
        assert len(chan) == 0

    run(main)


def test_first_in_first_out_for_values_and_waiters() -> None:
    def main() -> None:
        chan: Chan[int] = Chan(3)
        senders = [runloom_c.fiber(lambda i=i: chan.send(i)) for i in range(10)]
        parked(*senders[3:])
        assert [chan.recv()[0] for _ in range(10)] == list(range(10))
        got: list[tuple[int, int]] = []
        receivers = [
            runloom_c.fiber(lambda i=i: got.append((i, chan.recv()[0])))  # type: ignore[arg-type]
            for i in range(5)
        ]
        parked(*receivers)
        for i in range(5):
            chan.send(i)
        for g in receivers:
            g.join()
        assert sorted(got) == [(i, i) for i in range(5)]

    run(main)


def test_close_wakes_all_and_buffered_values_drain() -> None:
    def main() -> None:
        chan: Chan[str] = Chan()
        receivers = [go(chan.recv) for _ in range(3)]
        parked(*receivers)
        chan.close()
        assert [g.join() for g in receivers] == [(None, False)] * 3

        full: Chan[str] = Chan(2)
        full.send("a")
        full.send("b")
        sender = go(lambda: full.send("c"))
        parked(sender)
        full.close()
        with pytest.raises(ValueError, match="send on closed channel"):
            sender.join()
        assert list(full) == ["a", "b"]
        assert full.recv() == (None, False)
        assert full.try_recv() == (None, False)

    run(main)


def test_errors_of_a_closed_channel() -> None:
    chan: Chan[int] = Chan(1)
    chan.close()
    assert chan.closed
    for call in (chan.send, chan.try_send):
        with pytest.raises(ValueError, match="^send on closed channel$"):  # noqa: RUF043
            call(1)
    with pytest.raises(ValueError, match="^close on closed channel$"):  # noqa: RUF043
        chan.close()
    assert chan.recv() == (None, False)


def test_iteration_ends_with_the_channel() -> None:
    def main() -> list[int]:
        chan: Chan[int] = Chan()

        def produce() -> None:
            for i in range(5):
                chan.send(i)
            chan.close()

        go(produce)
        return list(chan)

    assert run(main) == [0, 1, 2, 3, 4]


def test_the_non_blocking_calls() -> None:
    chan: Chan[int] = Chan(1)
    assert chan.try_recv() is None
    assert chan.try_send(1) is True
    assert chan.try_send(2) is False
    assert chan.try_recv() == (1, True)

    def main() -> None:
        meeting: Chan[int] = Chan()
        assert meeting.try_send(1) is False
        g = go(meeting.recv)
        parked(g)
        assert meeting.try_send(5) is True
        assert g.join() == (5, True)
        h = go(lambda: meeting.send(6))
        parked(h)
        assert meeting.try_recv() == (6, True)
        h.join()

    run(main)


def test_none_is_a_value_like_any_other() -> None:
    chan: Chan[None] = Chan(1)
    chan.send(None)
    assert chan.recv() == (None, True)


def test_outside_of_fibers_only_what_needs_no_waiting_works() -> None:
    chan: Chan[int] = Chan(1)
    chan.send(1)
    with pytest.raises(RuntimeError, match=r"send\(\) would have to wait outside of a fiber"):
        chan.send(2)
    assert chan.recv() == (1, True)
    with pytest.raises(RuntimeError, match=r"recv\(\) would have to wait outside of a fiber"):
        chan.recv()
    with pytest.raises(RuntimeError, match=r"recv\(\) would have to wait"):
        next(iter(chan))
    with pytest.raises(RuntimeError, match=r"select\(\) would have to wait outside of a fiber"):
        select([("recv", chan)])
    assert select([("send", chan, 1)]) == (0, None)
    chan.close()
    assert chan.recv() == (1, True)


def test_S18_another_thread_uses_the_non_blocking_calls() -> None:
    chan: Chan[int] = Chan(16)
    count = 2_000
    errors: list[BaseException] = []

    def feed() -> None:
        try:
            sent = 0
            while sent < count:
                sent += chan.try_send(sent)
            with pytest.raises(RuntimeError):
                Chan().recv()
            chan.close()
        except BaseException as error:
            errors.append(error)
            raise

    def main() -> list[int]:
        thread = threading.Thread(target=feed)
        thread.start()
        got: list[int] = []
        while True:
            value = chan.try_recv()
            if value is None:
                runloom_c.sched_sleep(0.0001)
            elif value[1]:
                got.append(value[0])  # type: ignore[arg-type]
            else:
                break
        thread.join()
        return got

    assert run(main) == list(range(count))
    assert errors == []


def test_many_producers_and_consumers_lose_nothing() -> None:
    def main() -> collections.Counter[int]:
        chan: Chan[int] = Chan(7)
        done: Chan[None] = Chan()
        seen: collections.Counter[int] = collections.Counter()

        def produce(i: int) -> None:
            for k in range(200):
                chan.send(i * 1_000 + k)
            done.send(None)

        def consume() -> None:
            for value in chan:
                seen[value] += 1

        for i in range(5):
            runloom_c.fiber(lambda i=i: produce(i))
        consumers = [go(consume) for _ in range(4)]
        for _ in range(5):
            done.recv()
        chan.close()
        for g in consumers:
            g.join()
        return seen

    seen = run(main)
    assert len(seen) == 1_000
    assert set(seen.values()) == {1}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((-1,), ValueError, "capacity must not be negative"),
        (("x",), TypeError, "capacity must be an integer, not str"),
        ((1.5,), TypeError, "capacity must be an integer, not float"),
        ((1, 2), TypeError, r"Chan\(\) takes at most 1 positional argument \(2 given\)"),
        ((10**30,), OverflowError, "capacity is out of range"),
        ((sys.maxsize,), MemoryError, None),
    ],
)
def test_wrong_capacities(arguments: Any, error: type[Exception], text: str | None) -> None:
    with pytest.raises(error, match=text):
        Chan(*arguments)


def test_shape_of_the_type() -> None:
    chan: Chan[int] = Chan(capacity=3)
    assert bool(chan)
    assert len(chan) == 0
    assert "0/3" in repr(chan)
    chan.close()
    assert "closed" in repr(chan)
    assert runloom.Chan is runloom.sync.Chan is Chan
    assert str(Chan[int]) == "runloom_c.Chan[int]"

    class Named(Chan[int]):
        def __init__(self, capacity: int) -> None:
            self.name = "n"

    named = Named(2)
    assert (named.name, named.capacity) == ("n", 2)
    gone = weakref.ref(named)
    del named
    assert gone() is None


# ---------------------------------------------------------------- memory


class Marker:
    chan: Any


@pytest.mark.version_sensitive
def test_P04_a_channel_that_holds_itself_is_collected() -> None:
    chan: Chan[Any] = Chan(3)
    marker = Marker()
    marker.chan = chan
    gone = weakref.ref(marker), weakref.ref(chan)
    chan.send(marker)
    chan.send(chan)
    del chan, marker
    gc.collect()
    assert (gone[0](), gone[1]()) == (None, None)


@pytest.mark.version_sensitive
def test_P04_references_balance() -> None:
    value = object()
    before = sys.getrefcount(value)

    def main() -> None:
        chan: Chan[object] = Chan(5)

        def send() -> None:
            for _ in range(1_000_000):
                chan.send(value)
            chan.close()

        go(send)
        for received in chan:
            assert received is value
        dropped: Chan[object] = Chan(5)
        for _ in range(5):
            dropped.send(value)
        g = go(lambda: dropped.send(value))
        parked(g)
        g.cancel()
        with pytest.raises(runloom.Cancelled):
            g.join()
        for _ in range(3):
            assert select([("send", dropped, value)], default=True) == -1

    run(main)
    gc.collect()
    assert sys.getrefcount(value) == before


def test_dropping_a_full_channel_runs_finalisers_that_use_it() -> None:
    log: list[str] = []

    class Loud:
        def __init__(self, chan: Chan[Any]) -> None:
            self.other = chan

        def __del__(self) -> None:
            log.append("dropped")
            self.other.try_send("late")

    other: Chan[Any] = Chan(5)
    chan: Chan[Any] = Chan(3)
    for _ in range(3):
        chan.send(Loud(other))
    del chan
    assert log == ["dropped"] * 3
    assert len(other) == 3


# ---------------------------------------------------------------- select


def test_select_receives_sends_and_has_a_default() -> None:
    a: Chan[str] = Chan(1)
    b: Chan[str] = Chan(1)
    a.send("x")
    assert select([("recv", a), ("recv", b)]) == (0, ("x", True))
    assert select([("recv", a), ("recv", b)], default=True) == -1
    assert select([("recv", a), ("send", b, "y")]) == (1, None)
    assert select(cases=[("recv", b)], default=False) == (0, ("y", True))
    b.close()
    assert select([("recv", a), ("recv", b)]) == (1, (None, False))
    with pytest.raises(ValueError, match="send on closed channel"):
        select([("send", b, "z")])


def test_select_waits_for_the_first() -> None:
    def main() -> None:
        a: Chan[int] = Chan()
        b: Chan[int] = Chan()
        g = go(lambda: select([("recv", a), ("recv", b), ("send", Chan(), 1)]))
        parked(g)
        b.send(7)
        assert g.join() == (1, (7, True))
        h = go(lambda: select([["send", a, 8], ["recv", b]]))
        parked(h)
        assert a.recv() == (8, True)
        assert h.join() == (0, None)
        i = go(lambda: select([("recv", a), ("recv", b)]))
        parked(i)
        a.close()
        assert i.join() == (0, (None, False))

    run(main)


def test_a_buffered_value_beats_the_end() -> None:
    for _ in range(50):
        chan: Chan[int] = Chan(1)
        chan.send(1)
        chan.close()
        assert select([("recv", chan)]) == (0, (1, True))
        assert select([("recv", chan)]) == (0, (None, False))


def test_a_select_never_meets_itself() -> None:
    def main() -> None:
        chan: Chan[int] = Chan()
        g = go(lambda: select([("send", chan, 1), ("recv", chan)]))
        parked(g)
        sched_yield()
        assert not g.done
        chan.send(2)
        assert g.join() == (1, (2, True))
        assert select([("send", chan, 1), ("recv", chan)], default=True) == -1

    run(main)


def test_the_choice_is_fair() -> None:
    counts: collections.Counter[Any] = collections.Counter()
    chans: list[Chan[int]] = [Chan(1) for _ in range(3)]
    for chan in chans:
        chan.send(0)
    rounds = 3_000
    for _ in range(rounds):
        fired = select([("recv", chan) for chan in chans])
        assert fired != -1
        counts[fired[0]] += 1
        chans[fired[0]].send(0)
    assert all(counts[i] > rounds / 3 * 0.8 for i in range(3))


def test_select_consumes_nothing_of_the_cases_that_lose() -> None:
    def main() -> None:
        a: Chan[int] = Chan()
        b: Chan[int] = Chan()
        got: list[int] = []

        def pick() -> None:
            for _ in range(200):
                fired = select([("recv", a), ("recv", b)])
                assert fired != -1
                got.append(fired[1][0])  # type: ignore[index]

        def feed(chan: Chan[int], base: int) -> None:
            for i in range(100):
                chan.send(base + i)

        run_together = [go(pick), go(lambda: feed(a, 0)), go(lambda: feed(b, 1_000))]
        for g in run_together:
            g.join()
        assert sorted(got) == [*range(100), *range(1_000, 1_100)]
        assert [x for x in got if x < 1_000] == list(range(100))

    run(main)


def test_the_cases_may_change_while_select_waits() -> None:
    def main() -> None:
        chan: Chan[Any] = Chan()
        cases: list[Any] = [["recv", chan], ["send", Chan(), object()]]
        g = go(lambda: select(cases))
        parked(g)
        for case in cases:
            case.clear()
        cases.clear()
        gc.collect()
        chan.send("kept")
        assert g.join() == (0, ("kept", True))

    run(main)


def test_a_cancelled_select_has_done_nothing() -> None:
    def main() -> None:
        chan: Chan[int] = Chan()
        g = go(lambda: select([("recv", chan), ("send", Chan(), 1)]))
        parked(g)
        g.cancel()
        with pytest.raises(runloom.Cancelled):
            g.join()
        assert chan.try_send(1) is False

    run(main)


@pytest.mark.parametrize(
    ("cases", "error", "text"),
    [
        ([], ValueError, "at least one case"),
        (5, TypeError, "needs a list of cases"),
        ([5], TypeError, "select case 0 must be"),
        ([("recv", Chan()), ()], TypeError, "select case 1 must be"),
        ([("recv", Chan()), ("recv",)], TypeError, "select case 1 must be"),
        ([(1, Chan())], TypeError, "select case 0 must be"),
        ([("read", Chan())], ValueError, "select case 0 must be"),
        ([("recv", Chan(), 1)], ValueError, "select case 0 must be"),
        ([("send", Chan())], ValueError, "select case 0 must be"),
        ([("recv", Chan()), ("recv", [])], TypeError, "select case 1 needs a Chan"),
    ],
)
@pytest.mark.parametrize("default", [False, True])
def test_wrong_cases(cases: Any, error: type[Exception], text: str, default: bool) -> None:
    with pytest.raises(error, match=text):
        select(cases, default)


def test_select_takes_any_sequence_and_very_many_cases() -> None:
    chans: list[Chan[int]] = [Chan(1) for _ in range(500)]
    chans[321].send(5)
    assert select(tuple(("recv", chan) for chan in chans)) == (321, (5, True))

    def main() -> None:
        g = go(lambda: select([("recv", chan) for chan in chans]))
        parked(g)
        chans[77].send(6)
        assert g.join() == (77, (6, True))

    run(main)


def test_pipelines() -> None:
    # The sieve: each prime is a fiber between two channels.
    def generate(out: Chan[int]) -> None:
        for n in range(2, 120):
            out.send(n)
        out.close()

    def keep(prime: int, source: Chan[int], out: Chan[int]) -> None:
        for n in source:
            if n % prime:
                out.send(n)
        out.close()

    def main() -> list[int]:
        primes = []
        source: Chan[int] = Chan()
        runloom.fiber(generate, source)
        for prime in iter(lambda: source.recv()[0], None):  # noqa: B023
            primes.append(prime)
            out: Chan[int] = Chan()
            runloom.fiber(keep, prime, source, out)
            source = out
        return primes

    primes = run(main)
    assert primes[:10] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
    assert primes[-1] == 113


def test_results_of_many_meet_in_one_channel() -> None:
    def square(n: int) -> Callable[[], int]:
        return lambda: n * n

    assert run_all(*[square(n) for n in range(50)]) == [n * n for n in range(50)]
    assert LIMIT > 0
