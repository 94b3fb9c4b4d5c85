"""What belongs to a fiber and not to its thread: exceptions, contexts, recursion, frames.

The switch of the thread state has tests of its own; these go through the public calls.
"""

from __future__ import annotations

import contextvars
import decimal
import gc
import json
import pickle
import sys
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from fiber_support import output, parked, run, run_all

import runloom_c
from runloom_c import go, sched_yield

pytestmark = pytest.mark.version_sensitive


# ---------------------------------------------------------------- exceptions


def test_handled_exceptions_stay_with_their_fiber() -> None:
    def work(n: int) -> None:
        for i in range(10):
            try:
                raise ValueError(n, i)
            except ValueError as outer:
                sched_yield()
                assert sys.exc_info()[1] is outer
                try:
                    raise KeyError(n)
                except KeyError as inner:
                    sched_yield()
                    assert inner.__context__ is outer
                    assert sys.exc_info()[1] is inner
                sched_yield()
                assert sys.exc_info()[1] is outer
            assert sys.exc_info() == (None, None, None)

    run_all(*[lambda n=n: work(n) for n in range(20)])  # type: ignore[misc]
    assert sys.exc_info() == (None, None, None)


def test_a_bare_raise_raises_the_own_exception() -> None:
    def work(n: int) -> int:
        try:
            try:
                raise LookupError(n)
            except LookupError:
                sched_yield()
                raise
        except LookupError as error:
            return int(error.args[0])

    assert run_all(*[lambda n=n: work(n) for n in range(10)]) == list(range(10))  # type: ignore[misc]


def test_an_exception_travels_through_waits_in_finally_and_with() -> None:
    log: list[str] = []

    class Manager:
        def __enter__(self) -> None:
            sched_yield()

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            sched_yield()
            log.append(kind.__name__)

    def work() -> None:
        try:
            with Manager():
                raise OSError("x")
        finally:
            sched_yield()
            log.append("finally")

    handles = [go(work) for _ in range(3)]
    runloom_c.run()
    assert sorted(log) == ["OSError"] * 3 + ["finally"] * 3
    assert [str(g.error) for g in handles] == ["x"] * 3


def test_a_traceback_ends_at_the_fibers_function() -> None:
    def inner() -> None:
        sched_yield()
        raise ValueError("deep")

    def outer() -> None:
        inner()

    for g in (go(outer), go(outer)):
        runloom_c.run()
        assert g.error is not None
        names = [frame.name for frame in traceback.extract_tb(g.error.__traceback__)]
        assert names == ["outer", "inner"]


def test_the_exception_of_the_spawner_is_no_context() -> None:
    def work() -> None:
        assert sys.exc_info() == (None, None, None)
        raise KeyError(1)

    def main() -> BaseException:
        try:
            raise ValueError
        except ValueError:
            g = go(work)
            while not g.done:
                sched_yield()
        assert g.error is not None
        return g.error

    assert run(main).__context__ is None


# ---------------------------------------------------------------- generators and coroutines


def test_generators_in_fibers() -> None:
    def numbers(n: int) -> Iterator[int]:
        for i in range(n):
            sched_yield()
            yield i

    def delegate(n: int) -> Iterator[int]:
        sched_yield()
        yield from numbers(n)

    def work(n: int) -> list[int]:
        return list(delegate(n))

    got = run_all(*[lambda n=n: work(n) for n in range(15)])  # type: ignore[misc]
    assert got == [list(range(n)) for n in range(15)]


def test_a_generator_moves_between_fibers() -> None:
    def steps() -> Generator[int, None, None]:
        try:
            for i in range(6):
                try:
                    raise ValueError(i)
                except ValueError as error:
                    yield i
                    assert sys.exc_info()[1] is error
        finally:
            sched_yield()

    generator = steps()
    assert run_all(*[lambda: next(generator)] * 6) == [0, 1, 2, 3, 4, 5]
    assert run(lambda: next(generator, "end")) == "end"


def test_a_generator_that_runs_in_a_parked_fiber_is_busy() -> None:
    def steps() -> Iterator[int]:
        runloom_c.park_self()
        yield 1

    def main() -> None:
        generator = steps()
        g = go(lambda: next(generator))
        parked(g)
        with pytest.raises(ValueError, match="already executing"):
            next(generator)
        g.wake()
        assert g.join() == 1

    run(main)


def test_throw_and_close() -> None:
    log: list[str] = []

    def steps() -> Iterator[str]:
        try:
            while True:
                try:
                    sched_yield()
                    yield "step"
                except ZeroDivisionError:
                    sched_yield()
                    log.append("thrown")
        finally:
            sched_yield()
            log.append("closed")

    def work() -> None:
        generator = steps()
        next(generator)
        assert generator.throw(ZeroDivisionError) == "step"  # type: ignore[attr-defined]
        generator.close()  # type: ignore[attr-defined]

    run_all(work, work)
    assert sorted(log) == ["closed"] * 2 + ["thrown"] * 2


def test_coroutines_are_driven_by_hand() -> None:
    async def leaf(n: int) -> int:
        sched_yield()
        return n

    async def total(n: int) -> int:
        return sum([await leaf(i) for i in range(n)])

    def drive(n: int) -> int:
        try:
            total(n).send(None)
        except StopIteration as stop:
            return int(stop.value)
        raise AssertionError

    got = run_all(*[lambda n=n: drive(n) for n in range(10)])  # type: ignore[misc]
    assert got == [sum(range(n)) for n in range(10)]


def test_waits_inside_slots_called_from_c() -> None:
    class Slow:
        def __init__(self, value: int) -> None:
            self.value = value

        def __lt__(self, other: Slow) -> bool:
            sched_yield()
            return self.value < other.value

        def __eq__(self, other: object) -> bool:
            sched_yield()
            return isinstance(other, Slow) and self.value == other.value

        def __hash__(self) -> int:
            sched_yield()
            return 1

        def __repr__(self) -> str:
            sched_yield()
            return f"S{self.value}"

        def __iter__(self) -> Iterator[int]:
            sched_yield()
            return iter(range(self.value))

    def work() -> tuple[Any, ...]:
        ordered = sorted([Slow(3), Slow(1), Slow(2)])
        table = {Slow(i): i for i in range(4)}
        largest = max([1, 5, 3], key=lambda x: (sched_yield(), x)[1])
        return repr(ordered), table[Slow(2)], largest, sum(Slow(4))

    assert run_all(*[work] * 10) == [("[S1, S2, S3]", 2, 5, 6)] * 10


# ---------------------------------------------------------------- contexts

variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default="default")


def test_a_fiber_starts_with_a_copy_of_its_spawners_context() -> None:
    def work() -> Any:
        seen = variable.get()
        variable.set("mine")
        sched_yield()
        assert variable.get() == "mine"
        return seen

    def main() -> Any:
        variable.set("spawner")
        g = go(work)
        variable.set("changed later")
        g.join()
        assert variable.get() == "changed later"
        return g.result

    assert contextvars.copy_context().run(run, main) == "spawner"
    assert variable.get() == "default"


def test_the_context_is_taken_at_the_spawn_outside_of_fibers_too() -> None:
    def spawn() -> Any:
        variable.set("outside")
        return go(variable.get)

    g = contextvars.copy_context().run(spawn)
    h = go(variable.get)
    runloom_c.run()
    assert (g.result, h.result) == ("outside", "default")


def test_set_and_reset_across_waits() -> None:
    def work(n: int) -> None:
        for i in range(20):
            variable.set((n, i))
            sched_yield()
            token = variable.set("inner")
            sched_yield()
            assert variable.get() == "inner"
            variable.reset(token)
            assert variable.get() == (n, i)

    run_all(*[lambda n=n: work(n) for n in range(10)])  # type: ignore[misc]


def test_a_context_that_runs_in_a_parked_fiber_is_entered() -> None:
    def main() -> None:
        context = contextvars.copy_context()
        g = go(lambda: context.run(runloom_c.park_self))
        parked(g)
        with pytest.raises(RuntimeError, match="already entered"):
            context.run(int)
        g.wake()
        g.join()
        context.run(int)

    run(main)


@pytest.mark.parametrize("inherited", [False, True])
def test_the_decimal_context_is_the_fibers(inherited: bool) -> None:
    def main() -> list[Any]:
        if inherited:
            decimal.getcontext().prec = 20
        return [g.join() for g in [runloom_c.fiber(lambda n=n: work(n)) for n in range(3, 9)]]

    def work(digits: int) -> str:
        assert decimal.getcontext().prec == (20 if inherited else 28)
        decimal.getcontext().prec = digits
        sched_yield()
        return str(decimal.Decimal(1) / 3)

    got = contextvars.Context().run(run, main)
    assert got == ["0." + "3" * n for n in range(3, 9)]
    assert decimal.getcontext().prec == 28


def test_a_context_dies_with_its_fiber() -> None:
    class Value:
        pass

    gone = []

    def work() -> None:
        value = Value()
        gone.append(weakref.ref(value))
        variable.set(value)

    go(work)
    runloom_c.run()
    gc.collect()
    assert gone[0]() is None


# ---------------------------------------------------------------- recursion

# Code of unknown depth, in a process of its own because it might end it.
P01 = """
    import contextvars, copy, json, pickle, re, sys, warnings
    import runloom_c
    warnings.simplefilter("ignore")

    def nested_list():
        value = []
        for _ in range(100_000):
            value = [value]
        return value

    def self_call():
        return self_call()

    class Attribute:
        def __getattr__(self, name):
            return getattr(self, name + "x")

    class Key:
        def __init__(self, n): self.n = n
        def __lt__(self, other): return sorted([Key(self.n + 1), Key(self.n)])[0] is self

    class Same:
        def __eq__(self, other): return self == other

    class Hash:
        def __hash__(self): return hash((self,))

    class Format:
        def __format__(self, spec): return f"{self!s}"
        def __str__(self): return format(self, "")

    class New:
        def __new__(cls): return cls()

    def sort_key(x): return sorted([1, 2], key=sort_key)
    def map_self(x): return list(map(map_self, [x]))
    def in_context(): return contextvars.copy_context().run(in_context)

    CASES = {
        "call": self_call,
        "repr": lambda: repr(nested_list()),
        "json": lambda: json.loads("[" * 100_000),
        "dumps": lambda: json.dumps(nested_list()),
        "pickle": lambda: pickle.dumps(nested_list()),
        "deepcopy": lambda: copy.deepcopy(nested_list()),
        "compare": lambda: nested_list() == nested_list(),
        "compile": lambda: compile("(" * 150 + ")" * 150, "x", "eval"),
        "unary": lambda: compile("-" * 50_000 + "1", "x", "eval"),
        "getattr": lambda: Attribute().x,
        "sort": lambda: sorted([Key(0), Key(1)]),
        "eq": lambda: Same() == Same(),
        "regex": lambda: re.compile("(" * 3_000 + ")" * 3_000),
        "isinstance": lambda: isinstance(1, __import__("functools").reduce(
            lambda t, _: (t,), range(100_000), (str,))),
        "sort_key": lambda: sort_key(1),
        "map": lambda: map_self(1),
        "hash": lambda: hash(Hash()),
        "format": lambda: str(Format()),
        "new": lambda: New(),
        "context": lambda: contextvars.copy_context().run(in_context),
    }

    def outcome(case):
        try:
            case()
        except (RecursionError, MemoryError, SyntaxError, re.error, OverflowError) as error:
            return type(error).__name__
        return "done"

    def fiber():
        for name, case in CASES.items():
            print(name, outcome(case), flush=True)
        return 1

    if STACK:
        runloom_c.set_stack_size(STACK)
    handles = [runloom_c.go(fiber) for _ in range(2)]
    runloom_c.run()
    assert [g.result for g in handles] == [1, 1], [g.error for g in handles]
"""


@pytest.mark.parametrize("stack", ["0", "4194304"])
def test_P01_runaway_recursion_raises(stack: str) -> None:
    lines = output(P01.replace("STACK", stack), limit=60).splitlines()
    assert len(lines) == 40
    assert "sort RecursionError" in lines
    assert "call RecursionError" in lines
    assert "repr RecursionError" in lines
    assert "json RecursionError" in lines


def test_the_recursion_limit_is_per_fiber() -> None:
    def deep(n: int) -> int:
        if n == 0:
            sched_yield()
            return 0
        return 1 + deep(n - 1)

    limit = sys.getrecursionlimit()
    depth = limit - 200
    assert run_all(*[lambda: deep(depth)] * 5) == [depth] * 5

    def main() -> None:
        with pytest.raises(RecursionError):
            deep(limit + 10)
        assert deep(10) == 10

    run(main)


def test_a_limit_set_while_fibers_are_parked_holds_for_them() -> None:
    def deep(n: int) -> int:
        return n if n == 0 else 1 + deep(n - 1)

    def work() -> int:
        runloom_c.park_self()
        return deep(2_000)

    def main() -> None:
        g = go(work)
        parked(g)
        sys.setrecursionlimit(5_000)
        g.wake()
        assert g.join() == 2_000

    limit = sys.getrecursionlimit()
    try:
        run(main)
    finally:
        sys.setrecursionlimit(limit)


def test_deep_frames_survive_a_wait() -> None:
    def deep(n: int, *args: int) -> int:
        if n == 0:
            sched_yield()
            return sum(args)
        local = [n] * 3
        result = deep(n - 1, *args, n)
        assert local == [n] * 3
        return result

    expected = sum(range(1, 41))
    assert run_all(*[lambda: deep(40)] * 20) == [expected] * 20


def test_P02_code_with_fat_c_frames() -> None:
    code = """
        import bz2, decimal, hashlib, lzma, re, select, socket, sqlite3, ssl, time, zlib
        import runloom_c
        def work():
            select.select([], [], [], 0)
            ssl.create_default_context()
            assert zlib.decompress(zlib.compress(b"x" * 10_000)) == b"x" * 10_000
            assert lzma.decompress(lzma.compress(b"x" * 10_000)) == b"x" * 10_000
            assert bz2.decompress(bz2.compress(b"x" * 10_000)) == b"x" * 10_000
            hashlib.sha512(b"x").hexdigest()
            decimal.Decimal(2) ** decimal.Decimal("0.5")
            str(2 ** 10_000)
            re.match("(a+)+$", "a" * 20)
            socket.getaddrinfo("localhost", 80)
            db = sqlite3.connect(":memory:")
            db.create_function("f", 1, lambda v: runloom_c.sched_yield() or v)
            assert db.execute("select f(7)").fetchone() == (7,)
            compile(open(re.__file__).read(), "re", "exec")
            return 1
        handles = [runloom_c.go(work) for _ in range(3)]
        runloom_c.run()
        print([g.result or g.error for g in handles])
    """
    assert output(code) == "[1, 1, 1]\n"


# ---------------------------------------------------------------- the collector


class Node:
    def __init__(self) -> None:
        self.circle = self


def test_collections_while_fibers_are_parked() -> None:
    def work(n: int) -> int:
        local = [Node() for _ in range(5)]
        runloom_c.park_self()
        assert all(node.circle is node for node in local)
        return n

    def main() -> list[int]:
        handles = [runloom_c.fiber(lambda n=n: work(n)) for n in range(200)]
        parked(*handles[-3:])
        for _ in range(3):
            gc.collect()
        runloom_c.unpark_many(handles)
        return [g.join() for g in handles]

    assert run(main) == list(range(200))


def test_what_only_a_parked_fiber_refers_to_stays() -> None:
    def work() -> bool:
        class Local:
            value = 5

        def helper(x: Any) -> Any:
            return x.value

        runloom_c.park_self()
        return helper(Local()) == Local.value == 5

    def main() -> None:
        handles = [go(work) for _ in range(50)]
        parked(*handles)
        gc.collect()
        assert len([Node() for _ in range(10_000)]) == 10_000
        gc.collect()
        runloom_c.unpark_many(handles)
        assert all(g.join() for g in handles)

    run(main)


def test_a_finaliser_that_the_collector_runs_may_not_wait() -> None:
    errors: list[BaseException] = []

    class Waits:
        def __init__(self, wait: Callable[[], object]) -> None:
            self.circle = self
            self.wait = wait

        def __del__(self) -> None:
            try:
                self.wait()
            except BaseException as error:
                errors.append(error)

    def main() -> None:
        waits = [sched_yield, runloom_c.park_self, lambda: runloom_c.Chan().recv()]
        for wait in waits:
            Waits(wait)
        gc.collect()

    run(main)
    assert [type(error) for error in errors] == [RuntimeError] * 3
    assert all("garbage collector" in str(error) for error in errors)


def test_a_finaliser_run_by_a_last_reference_may_wait() -> None:
    log = []

    class Waits:
        def __del__(self) -> None:
            sched_yield()
            log.append("finalised")

    def work() -> None:
        value = Waits()
        del value
        Waits()

    run_all(work, work)
    assert log == ["finalised"] * 4


def test_a_gc_callback_may_not_wait() -> None:
    errors: list[BaseException] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        try:
            runloom_c.sched_sleep(1)
        except RuntimeError as error:
            errors.append(error)

    def main() -> None:
        gc.callbacks.append(callback)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(callback)

    run(main)
    assert errors
    assert all("garbage collector" in str(error) for error in errors)


def test_what_the_collector_runs_may_do_what_needs_no_waiting() -> None:
    chan: runloom_c.Chan[int] = runloom_c.Chan(4)

    class Sends:
        def __init__(self) -> None:
            self.circle = self

        def __del__(self) -> None:
            chan.send(1)
            go(lambda: chan.send(2))

    def main() -> None:
        Sends()
        gc.collect()

    run(main)
    assert sorted([chan.recv()[0], chan.recv()[0]]) == [1, 2]  # type: ignore[type-var]


# ---------------------------------------------------------------- tracing


def test_a_trace_function_follows_each_fiber() -> None:
    calls: list[str] = []

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        if event == "call" and frame.f_code.co_name.startswith("traced_"):
            calls.append(frame.f_code.co_name)
        return trace

    def traced_inner() -> None:
        sched_yield()

    def traced_outer() -> None:
        traced_inner()
        sched_yield()
        traced_inner()

    def main() -> None:
        sys.settrace(trace)
        try:
            handles = [go(traced_outer) for _ in range(3)]
            for g in handles:
                g.join()
        finally:
            sys.settrace(None)

    before = sys.gettrace()
    try:
        run(main)
    finally:
        sys.settrace(before)
    assert calls.count("traced_outer") == 3
    assert calls.count("traced_inner") == 6


@pytest.mark.parametrize("install", ["settrace", "setprofile"])
def test_a_trace_function_may_not_wait(install: str) -> None:
    errors: list[BaseException] = []

    def hook(frame: types.FrameType, event: str, arg: Any) -> None:
        if event != "call" or errors:
            return
        for wait in (sched_yield, runloom_c.park_self, lambda: runloom_c.Event().wait(1)):
            try:
                wait()
            except RuntimeError as error:
                errors.append(error)

    def victim() -> None:
        pass

    def main() -> None:
        getattr(sys, install)(hook)
        try:
            victim()
        finally:
            getattr(sys, install)(None)

    run(main)
    assert len(errors) == 3
    assert all("trace or profile function" in str(error) for error in errors)


def test_a_profile_function_sees_every_fiber() -> None:
    returns = []

    def profile(frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "return" and frame.f_code.co_name == "profiled":
            returns.append(arg)

    def profiled() -> int:
        sched_yield()
        return 1

    def main() -> None:
        sys.setprofile(profile)
        try:
            for g in [go(profiled) for _ in range(4)]:
                g.join()
        finally:
            sys.setprofile(None)

    run(main)
    assert returns == [1] * 4


# ---------------------------------------------------------------- frames from outside


def test_stack_of_a_parked_fiber() -> None:
    def inner() -> None:
        runloom_c.park_self()

    def outer() -> None:
        inner()

    def main() -> None:
        g = go(outer)
        assert g.stack() == []
        parked(g)
        frames = g.stack()
        assert [name for _, _, name in frames] == ["inner", "outer"]
        assert all(filename == __file__ and isinstance(line, int) for filename, line, _ in frames)
        assert g.stack(1) == frames[:1]
        assert g.stack(limit=0) == []
        assert g.stack(None) == frames
        assert runloom_c.fiber_stack(g.id) == (repr(outer), frames)
        g.wake()
        g.join()
        assert g.stack() == []
        with pytest.raises(LookupError):
            runloom_c.fiber_stack(g.id)

    run(main)


def test_the_stack_of_the_running_fiber() -> None:
    def work() -> list[Any]:
        g = runloom_c.current_g()
        assert g is not None
        return g.stack()

    assert run(work)[0][2] == "work"


def test_frames_outlive_their_fiber() -> None:
    frames = []

    def work(n: int) -> None:
        frames.append(sys._getframe())
        sched_yield()

    run_all(*[lambda n=n: work(n) for n in range(5)])  # type: ignore[misc]
    gc.collect()
    assert [frame.f_locals["n"] for frame in frames] == list(range(5))


def test_current_frames_while_fibers_are_parked() -> None:
    def main() -> None:
        g = go(runloom_c.park_self)
        parked(g)
        for frame in sys._current_frames().values():
            traceback.extract_stack(frame)
        g.wake()
        g.join()

    run(main)


def test_modules_that_keep_state_in_the_thread() -> None:
    # warnings and pickle and json keep recursion guards and contexts; a mix of them at once.
    def work(n: int) -> str:
        with warnings.catch_warnings(record=True):
            sched_yield()
        value = {"n": n, "nested": [[n] * 3] * 2}
        sched_yield()
        assert pickle.loads(pickle.dumps(value)) == value
        return json.dumps(value)

    got = run_all(*[lambda n=n: work(n) for n in range(10)])  # type: ignore[misc]
    assert [json.loads(text)["n"] for text in got] == list(range(10))


def test_ten_thousand_fibers() -> None:
    def work(n: int) -> int:
        local = [n]
        runloom_c.park_self()
        return local[0]

    def main() -> int:
        handles = [runloom_c.fiber(lambda n=n: work(n)) for n in range(10_000)]
        parked(handles[-1])
        gc.collect()
        runloom_c.unpark_many(handles)
        return sum(g.join() for g in handles)

    assert run(main) == sum(range(10_000))
