"""Contexts in the manner of Go."""

from __future__ import annotations

import gc
import time

import pytest
from fiber_support import LIMIT, run, until

import runloom.sync as sync
import runloom_c
from runloom import context


def test_the_background_never_ends() -> None:
    background = context.Background()
    assert background is context.TODO() is context.Background()
    assert background.err() is None
    assert background.deadline() is None
    assert background.value("key") is None
    assert background.done.try_recv() is None
    assert "active" in repr(background)


def test_a_cancel_reaches_the_children() -> None:
    def main() -> None:
        parent, cancel = context.WithCancel(context.Background())
        child, cancel_child = context.WithCancel(parent)
        grandchild = context.WithValue(child, "user", 7)
        assert grandchild.value("user") == 7
        assert grandchild.value("other") is None
        waiting = runloom_c.go(grandchild.done.recv)
        sync.yield_now()
        cancel_child()
        assert waiting.join() == (None, False)
        assert grandchild.err() == child.err() == context.CANCELED
        assert parent.err() is None
        cancel()
        cancel()
        cancel_child()
        assert parent.err() == context.CANCELED
        assert context.CANCELED in repr(parent)
        late, _ = context.WithCancel(parent)
        assert late.err() == context.CANCELED
        assert late.done.recv() == (None, False)

    run(main)


def test_a_deadline_ends_it() -> None:
    def main() -> None:
        begin = time.monotonic()
        ctx, cancel = context.WithTimeout(context.Background(), 0.01)
        assert ctx.deadline() == pytest.approx(time.time() + 0.01, abs=LIMIT)
        index, _ = sync.select([("recv", sync.Chan[int](0)), ("recv", ctx.done)])
        assert index == 1
        assert time.monotonic() - begin >= 0.01
        assert ctx.err() == context.DEADLINE_EXCEEDED
        cancel()
        assert ctx.err() == context.DEADLINE_EXCEEDED
        ctx, cancel = context.WithDeadline(context.Background(), time.time() + LIMIT)
        cancel()
        assert ctx.err() == context.CANCELED
        for seconds in (0, -1):
            ctx, _ = context.WithTimeout(context.Background(), seconds)
            assert ctx.err() == context.DEADLINE_EXCEEDED

    run(main)
    assert runloom_c.fiber_count() == 0  # a cancel ends the timer


def test_the_sooner_deadline_counts() -> None:
    def main() -> None:
        parent, cancel = context.WithTimeout(context.Background(), 0.005)
        child, cancel_child = context.WithTimeout(parent, LIMIT)
        assert child.deadline() == parent.deadline()
        child.done.recv()
        assert child.err() == context.DEADLINE_EXCEEDED
        cancel()
        cancel_child()

    run(main)


def test_nothing_stays_at_a_parent() -> None:
    def main() -> None:
        parent, cancel = context.WithCancel(context.Background())
        for _ in range(100):
            _, cancel_child = context.WithTimeout(parent, LIMIT)
            cancel_child()
        gc.collect()
        assert not parent._children
        assert not context.Background()._children
        cancel()
        until(lambda: runloom_c.fiber_count() == 1)

    run(main)


def test_wrong_arguments() -> None:
    for make in (context.WithCancel, lambda x: context.WithTimeout(x, 1)):
        with pytest.raises(TypeError, match="parent must be a Context"):
            make(None)  # type: ignore[arg-type, no-untyped-call]
