"""blocking(): calls that would stop the thread, on threads of the pool."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
import traceback
from typing import Any

import pytest
from fiber_support import LIMIT, output, parked, run, run_all

import runloom
import runloom_c
from runloom_c import blocking, go


def test_it_runs_elsewhere_and_the_fibers_go_on() -> None:
    def main() -> None:
        ticks = []

        def tick() -> None:
            while True:
                ticks.append(1)
                runloom_c.sched_sleep(0.001)

        g = go(tick)
        ident = blocking(lambda: (time.sleep(0.05), threading.get_ident())[1])
        g.cancel()
        assert ident != threading.get_ident()
        assert len(ticks) > 5

    run(main)


def test_calls_overlap() -> None:
    begin = time.monotonic()
    barrier = threading.Barrier(4)
    # It can only be passed by four at the same time.
    run_all(*[lambda: blocking(barrier.wait, LIMIT)] * 4)
    assert time.monotonic() - begin < LIMIT


def test_arguments_and_results() -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    assert run(lambda: blocking(call, 1, 2, key=3)) == ((1, 2), {"key": 3})
    assert blocking(call, 1, key=2) == ((1,), {"key": 2})
    for wrong in ((), (1,)):
        with pytest.raises(TypeError, match="needs a callable"):
            blocking(*wrong)  # type: ignore[call-overload]


def test_exceptions_keep_their_traceback() -> None:
    def deep() -> None:
        raise ValueError("elsewhere")

    def main() -> None:
        with pytest.raises(ValueError, match="elsewhere") as caught:
            blocking(deep)
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "deep"
        with pytest.raises(SystemExit):
            blocking(sys.exit, 3)

    run(main)


def test_outside_of_fibers_it_is_a_plain_call() -> None:
    assert blocking(threading.get_ident) == threading.get_ident()


def test_it_sees_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def main() -> None:
        variable.set("mine")

        def there() -> str:
            seen = variable.get()
            variable.set("changed there")
            return seen

        assert blocking(there) == "mine"
        assert variable.get() == "mine"

    run(main)


def test_a_call_that_began_is_waited_for() -> None:
    def main() -> None:
        began, release = threading.Event(), threading.Event()

        def work() -> str:
            began.set()
            release.wait(LIMIT)
            return "result"

        g = go(lambda: blocking(work))
        while not began.is_set():
            runloom_c.sched_sleep(0.001)
        g.cancel()
        runloom_c.sched_sleep(0.01)
        assert not g.done
        release.set()
        assert g.join() == "result"

    run(main)


def test_fibers_cannot_run_on_the_pools_thread_but_its_calls_may_use_them() -> None:
    def main() -> None:
        chan: runloom_c.Chan[int] = runloom_c.Chan(1)
        g = go(chan.recv)
        parked(g)
        assert blocking(chan.try_send, 4) is True
        assert g.join() == (4, True)
        assert blocking(runloom_c.current_g) is None

    run(main)


def test_very_many_calls() -> None:
    assert sum(run_all(*[lambda: blocking(len, "abc")] * 300)) == 900


def test_the_interpreter_ends_with_calls_under_way() -> None:
    code = """
        import time, runloom, runloom_c
        runloom_c.go(lambda: runloom_c.blocking(time.sleep, 0.3))
        runloom_c.go(runloom_c.sched_stop)
        runloom_c.run()
        print("end")
    """
    assert output(code) == "end\n"
    assert runloom.blocking is blocking
