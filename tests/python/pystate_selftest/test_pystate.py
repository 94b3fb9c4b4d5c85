"""Tests of python/bindings/pystate.c on its own, without runloom's scheduler.

They build selftest.c (a tiny fiber runtime) with the running interpreter's headers and drive it:

    python tests/python/pystate_selftest/test_pystate.py [-v] [Class.test]

CC names the compiler (gcc); PYSTATE_CFLAGS adds flags, for instance -I of another header tree.
"""

import asyncio
import contextvars
import faulthandler
import gc
import json
import os
import pathlib
import pickle
import subprocess
import sys
import sysconfig
import tempfile
import threading
import traceback
import unittest
import weakref

HERE = pathlib.Path(__file__).resolve().parent
BINDINGS = HERE.parents[2] / "python" / "bindings"
BUILD = tempfile.TemporaryDirectory(prefix="pystate_selftest_")
HANG_LIMIT = 60
LAYOUT_FAULT = None  # what the import check said of a planted fault
st = None


def include_flags():
    paths = sysconfig.get_paths()
    return [f"-I{path}" for path in dict.fromkeys((paths["include"], paths["platinclude"]))]


def build(directory, includes):
    """Compile selftest.c into directory and return the extension's path."""
    target = pathlib.Path(directory) / "pystate_selftest.so"
    command = [os.environ.get("CC", "gcc"), "-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]
    command += ["-fPIC", "-shared", "-fvisibility=hidden", f"-I{BINDINGS}", *includes]
    command += os.environ.get("PYSTATE_CFLAGS", "").split()
    command += [str(HERE / "selftest.c"), str(BINDINGS / "pystate.c"), "-o", str(target)]
    command += ["-lboost_context"]
    subprocess.run(command, check=True, timeout=120)
    return target


def setUpModule():
    global st, LAYOUT_FAULT
    build(BUILD.name, include_flags())
    sys.path.insert(0, BUILD.name)
    import pystate_selftest

    st = pystate_selftest
    try:
        st.check_planted_fault()
    except ImportError as error:
        LAYOUT_FAULT = str(error)
    st.init()
    os.register_at_fork(after_in_child=st.after_fork)


def tearDownModule():
    st.free_hub()
    BUILD.cleanup()


def run_python(code, *flags, **extra):
    """Run code in a fresh interpreter that has the extension as `st`."""
    head = f"import sys; sys.path.insert(0, {BUILD.name!r}); import pystate_selftest as st; st.init()\n"
    return subprocess.run(
        [sys.executable, *flags, "-c", head + code],
        capture_output=True, text=True, timeout=HANG_LIMIT, **extra,
    )


def finish(*fibers):
    """Run the hub; every given fiber must have returned: its results."""
    st.run()
    for fiber in fibers:
        if fiber.exception is not None:
            raise fiber.exception
        assert fiber.status == "done", fiber.status
    return [fiber.result for fiber in fibers]


def in_fiber(function, *args):
    return finish(st.spawn(function, *args))[0]


class Case(unittest.TestCase):
    def setUp(self):
        faulthandler.dump_traceback_later(HANG_LIMIT, exit=True)
        self.live = st.stats()["live"]

    def tearDown(self):
        faulthandler.cancel_dump_traceback_later()
        self.assertEqual(st.stats()["live"], self.live, "fibers were left over")

    def sizes(self, c_size, data_size=8192):
        self.addCleanup(st.configure, *st.configure(c_size, data_size))


class Switching(Case):
    def test_interleaves_and_returns(self):
        log = []

        def work(name):
            for i in range(3):
                log.append((name, i))
                st.yield_()
            return name

        self.assertEqual(finish(st.spawn(work, "a"), st.spawn(work, "b")), ["a", "b"])
        self.assertEqual(log, [(n, i) for i in range(3) for n in "ab"])

    def test_deep_python_calls(self):
        def deep(n):
            if n == 0:
                st.yield_()
                return 0
            st.yield_()
            return 1 + deep(n - 1)

        depths = range(0, 200, 7)  # beyond the first data stack chunk
        self.assertEqual(finish(*[st.spawn(deep, n) for n in depths]), list(depths))

    def test_inside_c_slots(self):
        class K:
            def __init__(self, v): self.v = v
            def __getattr__(self, name): st.yield_(); return name
            def __lt__(self, other): st.yield_(); return self.v < other.v
            def __eq__(self, other): st.yield_(); return self.v == other.v
            def __hash__(self): st.yield_(); return 1
            def __repr__(self): st.yield_(); return f"K{self.v}"
            def __call__(self, x): st.yield_(); return x + self.v
            def __enter__(self): st.yield_(); return self
            def __exit__(self, *exc): st.yield_()
            def __iter__(self): st.yield_(); return iter(range(self.v))

        def work():
            self.assertEqual([k.v for k in sorted([K(3), K(1), K(2)])], [1, 2, 3])
            self.assertEqual({K(i): i for i in range(5)}[K(3)], 3)
            self.assertEqual((K(1).zzz, repr([K(1), K(2)])), ("zzz", "[K1, K2]"))
            self.assertEqual(list(map(K(10), range(3))), [10, 11, 12])
            with K(4) as k:
                self.assertEqual(sum(k), 6)
            self.assertEqual(max([1, 5, 3], key=lambda x: (st.yield_(), x)[1]), 5)
            return "ok"

        self.assertEqual(finish(*[st.spawn(work) for _ in range(40)]), ["ok"] * 40)

    def test_thousands(self):
        def work(n):
            cell = [n]
            st.yield_()

            def inner():
                st.yield_()
                return cell[0]

            return inner()

        n = 5000
        self.sizes(64 * 1024, 4096)
        self.assertEqual(finish(*[st.spawn(work, i) for i in range(n)]), list(range(n)))

    def test_main_is_neutral_while_fibers_are_parked(self):
        def work():
            try:
                raise KeyError("fiber")
            except KeyError:
                var.set("fiber")
                st.park()
                return sys.exc_info()[0], var.get()

        var = contextvars.ContextVar("var", default="none")
        fiber = st.spawn(work)
        self.assertEqual(st.run(), 1)
        self.assertEqual((sys.exc_info()[0], var.get()), (None, "none"))
        self.assertEqual(sys._getframe().f_code.co_name, "test_main_is_neutral_while_fibers_are_parked")
        try:
            raise ValueError("main")
        except ValueError as error:
            self.assertIsNone(error.__context__)
        st.unpark(fiber)
        self.assertEqual(finish(fiber), [(KeyError, "fiber")])

    def test_misuse_ends_the_process(self):
        result = run_python("st.misuse()")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("runloom: switch to a fiber while another one is running", result.stderr)

    def test_many_hub_threads(self):
        errors = []

        def hub():
            try:
                Switching("test_inside_c_slots").test_inside_c_slots()
                Exceptions("test_nested_handlers").test_nested_handlers()
                Generators("test_all_kinds").test_all_kinds()
            except BaseException:
                errors.append(traceback.format_exc())
            finally:
                st.free_hub()

        threads = [threading.Thread(target=hub) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            gc.collect()
            sys._current_frames()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])


class Exceptions(Case):
    def test_nested_handlers(self):
        def work(n):
            for i in range(10):
                try:
                    try:
                        raise ValueError(n * 100 + i)
                    except ValueError as outer:
                        st.yield_()
                        self.assertIs(sys.exc_info()[1], outer)
                        try:
                            raise KeyError(n)
                        except KeyError as inner:
                            st.yield_()
                            self.assertIs(inner.__context__, outer)
                            raise RuntimeError(n) from inner
                        finally:
                            st.yield_()
                except RuntimeError as error:
                    st.yield_()
                    self.assertIs(sys.exc_info()[1], error)
                    self.assertEqual(error.__cause__.args, (n,))
                self.assertEqual(sys.exc_info(), (None, None, None))
            st.yield_()
            raise OSError(n)

        fibers = [st.spawn(work, n) for n in range(20)]
        st.run()
        for n, fiber in enumerate(fibers):
            self.assertIsInstance(fiber.exception, OSError, fiber.exception)
            self.assertEqual(fiber.exception.args, (n,))
            self.assertIsNone(fiber.exception.__context__)
            self.assertIn("in work", "".join(traceback.format_exception(fiber.exception)))

    def test_does_not_inherit_the_spawners_exception(self):
        try:
            raise ValueError("spawner")
        except ValueError:
            self.assertEqual(in_fiber(lambda: sys.exc_info()[1]), None)
            self.assertIsInstance(sys.exc_info()[1], ValueError)

    def test_throw_into_parked_and_new(self):
        log = []

        def work(n):
            try:
                st.park()
            finally:
                st.yield_()
                log.append((n, sys.exc_info()[0]))

        parked = [st.spawn(work, n) for n in range(3)]
        self.assertEqual(st.run(), 3)
        new = st.spawn(work, 9)
        for fiber in (*parked, new):
            st.throw(fiber, TimeoutError("t"))
        st.run()
        self.assertEqual(log, [(n, TimeoutError) for n in range(3)])
        self.assertEqual([type(f.exception) for f in (*parked, new)], [TimeoutError] * 4)


class Generators(Case):
    def test_all_kinds(self):
        def gen(n):
            for i in range(n):
                st.yield_()
                try:
                    yield i
                    st.yield_()
                except ZeroDivisionError as error:
                    st.yield_()
                    self.assertIs(sys.exc_info()[1], error)
                    yield "caught"

        def outer(n):
            st.yield_()
            yield from gen(n)
            st.yield_()

        async def leaf(i):
            st.yield_()
            return i

        async def coro(n):
            total = 0
            for i in range(n):
                total += await leaf(i)
            return total

        async def agen(n):
            for i in range(n):
                st.yield_()
                yield i

        async def consume(n):
            return [i async for i in agen(n)]

        def drive(coroutine):
            with self.assertRaises(StopIteration) as stop:
                coroutine.send(None)
            return stop.exception.value

        def work(n):
            self.assertEqual(list(outer(n)), list(range(n)))
            it = gen(5)
            next(it)
            self.assertEqual(it.throw(ZeroDivisionError), "caught")
            try:
                raise LookupError(n)
            except LookupError as error:
                for _ in outer(3):
                    self.assertIs(sys.exc_info()[1], error)
            self.assertEqual(drive(coro(n)), sum(range(n)))
            self.assertEqual(drive(consume(n)), list(range(n)))
            suspended = gen(3)
            next(suspended)
            del suspended
            return n

        self.assertEqual(finish(*[st.spawn(work, n) for n in range(30)]), list(range(30)))

    def test_moves_between_fibers(self):
        def gen():
            for i in range(4):
                try:
                    raise ValueError(i)
                except ValueError:
                    st.yield_()
                    yield i, sys.exc_info()[1].args[0]
                    self.assertEqual(sys.exc_info()[1].args[0], i)

        it = gen()

        def step(n):
            try:
                raise KeyError(n)
            except KeyError as mine:
                value = next(it)
                self.assertIs(sys.exc_info()[1], mine)
                return value

        results = []
        for n in range(4):  # one after the other: each resumes what another one left
            results += finish(st.spawn(step, n))
        self.assertEqual(results, [(i, i) for i in range(4)])
        self.assertEqual(list(it), [])

    def test_running_in_a_parked_fiber(self):
        def gen():
            st.yield_()
            yield 1

        it = gen()
        first, second = st.spawn(next, it), st.spawn(next, it)
        st.run()
        self.assertEqual(first.result, 1)
        self.assertIsInstance(second.exception, ValueError)
        self.assertIn("already executing", str(second.exception))

    def test_asyncio_run(self):
        async def main(n):
            total = 0
            for _ in range(5):
                await asyncio.sleep(0)
                st.yield_()
                self.assertIsNotNone(asyncio.current_task())
                total += n
            return total

        count = 4 if sys.version_info >= (3, 14) else 1  # before 3.14 the running loop is the hub's
        fibers = [st.spawn(lambda n=n: asyncio.run(main(n))) for n in range(1, 1 + count)]
        self.assertEqual(finish(*fibers), [5 * n for n in range(1, 1 + count)])


class Contexts(Case):
    def test_isolation_and_context_run(self):
        var = contextvars.ContextVar("var", default="default")
        token = var.set("main")
        self.addCleanup(var.reset, token)

        def work(n):
            self.assertEqual(var.get(), "main")
            for i in range(50):
                var.set((n, i))
                st.yield_()
                self.assertEqual(var.get(), (n, i))
                temporary = var.set("temporary")
                st.yield_()
                self.assertEqual(var.get(), "temporary")
                var.reset(temporary)
            copy = contextvars.copy_context()

            def inner():
                self.assertEqual(var.get(), (n, 49))
                var.set("inner")
                st.yield_()
                return var.get()

            self.assertEqual((copy.run(inner), var.get(), copy[var]), ("inner", (n, 49), "inner"))
            return n

        self.assertEqual(finish(*[st.spawn(work, n) for n in range(20)]), list(range(20)))
        self.assertEqual(var.get(), "main")

    def test_entered_in_a_parked_fiber(self):
        context = contextvars.copy_context()
        first = st.spawn(context.run, st.park)
        st.run()
        second = st.spawn(context.run, st.yield_)
        st.run()
        self.assertIsInstance(second.exception, RuntimeError)
        st.unpark(first)
        finish(first)
        self.assertEqual(context.run(lambda: 7), 7)

    def test_given_and_empty(self):
        var = contextvars.ContextVar("var", default="default")
        context = contextvars.copy_context()
        context.run(var.set, "given")
        before = sys.getrefcount(context)
        fibers = st.spawn_in(context, var.get), st.spawn_in(None, var.get)
        self.assertEqual(finish(*fibers), ["given", "default"])
        self.assertEqual(sys.getrefcount(context), before)

    def test_finaliser_of_a_context_value_may_switch(self):
        log = []

        class Value:
            def __del__(self):
                st.yield_()
                contextvars.ContextVar("late").set(log)
                log.append("deleted")

        def work():
            contextvars.ContextVar("v").set(Value())
            st.yield_()

        before = sys.getrefcount(log)
        finish(*[st.spawn(work) for _ in range(10)])
        gc.collect()
        self.assertEqual(log, ["deleted"] * 10)
        self.assertEqual(sys.getrefcount(log), before)


class Recursion(Case):
    def test_python_to_the_limit(self):
        deepest = []

        def dive(n):
            deepest[-1] = n
            if n % 200 == 0:
                st.yield_()
            return dive(n + 1)

        def work():
            for _ in range(3):
                deepest.append(0)
                with self.assertRaises(RecursionError):
                    dive(1)
                st.yield_()
            return True

        finish(*[st.spawn(work) for _ in range(8)])
        # Interleaved fibers do not eat each other's depth: the last one alone shows the full limit.
        deepest.append(0)
        in_fiber(lambda: self.assertRaises(RecursionError, dive, 1))
        self.assertGreater(deepest[-1], sys.getrecursionlimit() - 20)

    def test_c_to_the_limit_P01(self):
        class GetAttr:
            def __getattr__(self, name): return getattr(self, name + "x")

        class Repr:
            def __repr__(self): return repr(self)

        class Eq:
            def __eq__(self, other): return self == other

        def sort_key(_): return sorted([1, 2], key=sort_key)

        def nested(n):
            value = []
            for _ in range(n):
                value = [value]
            return value

        def work():
            cases = [lambda: GetAttr().q, lambda: repr(Repr()), lambda: Eq() == Eq()]
            if sys.version_info >= (3, 12):  # 3.11 has one limit for cheap and for dear calls
                cases += [lambda: sort_key(1), lambda: list(map(sort_key, [1]))]
            deep = nested(100_000)
            cases += [lambda: repr(deep), lambda: json.dumps(deep), lambda: pickle.dumps(deep)]
            cases += [lambda: json.loads("[" * 100_000)]
            for case in cases:
                self.assertRaises(RecursionError, case)
                st.yield_()
            self.assertEqual(json.loads(json.dumps(nested(200))), nested(200))
            del deep, cases  # deallocation, 100,000 levels deep, on this stack
            st.yield_()
            self.assertRaises(SyntaxError, compile, "(" * 201 + ")" * 201, "nested", "eval")
            self.assertEqual(eval("(" * 150 + "7" + ")" * 150), 7)
            self.assertRaises((RecursionError, MemoryError), eval, "-" * 100_000 + "1")
            return True

        self.assertEqual(finish(*[st.spawn(work) for _ in range(4)]), [True] * 4)

    def test_small_stacks_raise_earlier(self):
        class Repr:
            depth = 0

            def __repr__(self):
                self.depth += 1
                return repr(self)

        def work():
            value = Repr()
            self.assertRaises(RecursionError, repr, value)
            return value.depth

        self.sizes(1024 * 1024)
        large = in_fiber(work)
        self.sizes(256 * 1024)
        small = in_fiber(work)
        self.assertLess(small, 250)
        self.assertGreater(small, 25)
        self.assertGreater(large, small)

    @unittest.skipIf(sys.version_info >= (3, 14), "the trashcan looks at addresses")
    def test_small_stacks_still_deallocate(self):
        class Node:
            def __init__(self, below): self.below = below
            def __del__(self): dead.append(1)

        def work():
            node = None
            for _ in range(2000):
                node = Node((node,))
            del node
            return len(dead)

        dead = []
        self.sizes(128 * 1024)
        self.assertEqual(in_fiber(work), 2000)

    def test_setrecursionlimit_while_parked(self):
        def dive(n):
            if n == 0:
                st.park()
                return climb(0)
            return dive(n - 1)

        def climb(n):
            try:
                return climb(n + 1)
            except RecursionError:
                return n

        limit = sys.getrecursionlimit()
        self.addCleanup(sys.setrecursionlimit, limit)
        fiber = st.spawn(dive, 100)
        st.run()
        sys.setrecursionlimit(limit + 500)
        st.unpark(fiber)
        depth = finish(fiber)[0]
        self.assertAlmostEqual(depth, limit + 500 - 100, delta=10)
        fiber = st.spawn(dive, 100)
        st.run()
        sys.setrecursionlimit(limit)
        st.unpark(fiber)
        self.assertAlmostEqual(finish(fiber)[0], limit - 100, delta=10)

    def test_setrecursionlimit_with_a_small_stack(self):
        def climb(n):
            try:
                return climb(n + 1)
            except RecursionError:
                return n

        def work():
            st.park()
            return climb(0)

        limit = sys.getrecursionlimit()
        self.addCleanup(sys.setrecursionlimit, limit)
        self.sizes(256 * 1024)
        fiber = st.spawn(work)
        st.run()
        sys.setrecursionlimit(limit + 500)
        st.unpark(fiber)
        depth = finish(fiber)[0]
        if sys.version_info < (3, 12):  # one counter: the stack decides, not the new limit
            self.assertLess(depth, 130)
        else:
            self.assertGreater(depth, limit + 400)


class DataStack(Case):
    @staticmethod
    def mapped_kib():
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmSize:"):
                return int(line.split()[1])

    def test_chunks_are_returned(self):
        def deep(n):
            return 0 if n == 0 else 1 + deep(n - 1)

        for data_size in (0, 256, 8192, 65536):
            self.sizes(1024 * 1024, data_size)
            finish(*[st.spawn(deep, 300) for _ in range(50)])
            before = self.mapped_kib()
            for _ in range(10):
                self.assertEqual(finish(*[st.spawn(deep, 300) for _ in range(50)]), [300] * 50)
            # 500 lost chunks of 16 KiB would be 8,000
            self.assertLess(self.mapped_kib() - before, 2000, data_size)


class Deallocation(Case):
    def test_trashcan_with_switching_finalisers(self):
        class Node:
            __slots__ = ("below", "__weakref__")
            def __init__(self, below): self.below = below
            def __del__(self): st.yield_(); dead.append(1)

        def work():
            chain = None
            for _ in range(20_000):
                chain = (chain,)
            del chain
            node = None
            for _ in range(300):
                node = Node(node)
            del node
            mixed = None
            for _ in range(300):
                mixed = (Node(None), [mixed])
            del mixed
            st.yield_()

        dead = []
        finish(*[st.spawn(work) for _ in range(5)])
        self.assertEqual(len(dead), 5 * 600)

    def test_references_balance(self):
        class Thing:
            pass

        def work(thing):
            var.set(thing)
            held = [thing] * 10
            try:
                raise ValueError(thing)
            except ValueError:
                st.yield_()
                for value in (x for x in held):
                    st.yield_()
            return held

        def batch():
            finish(*[st.spawn(work, thing) for _ in range(50)])
            st.spawn(work, thing)
            finish()
            gc.collect()

        var = contextvars.ContextVar("var")
        thing = Thing()
        for _ in range(5):
            batch()
        total = getattr(sys, "gettotalrefcount", lambda: 0)  # debug builds
        watched = [thing, Thing, work, None, ValueError, var, st.yield_]
        before = [sys.getrefcount(w) for w in watched]
        blocks, references = sys.getallocatedblocks(), total()
        for _ in range(20):
            batch()
        after = [sys.getrefcount(w) for w in watched]
        self.assertEqual(after[0], before[0])
        for value, now, then in zip(watched, after, before):
            self.assertLess(abs(now - then), 20, value)  # after 1,000 fibers
        self.assertLess(abs(sys.getallocatedblocks() - blocks), 100)
        self.assertLess(abs(total() - references), 200)


class Collector(Case):
    def test_collect_with_parked_fibers(self):
        class C:
            pass

        def work(n):
            a = C()
            a.me, a.others = a, [a, C()]
            alive = weakref.ref(a)
            namespace = {"yield_": st.yield_}
            exec(
                "def tmp(x):\n y = [x] * 3\n def q(): yield_(); return y\n"
                " z = q(); yield_()\n return z\n",
                namespace,
            )
            function = [namespace.pop("tmp")]
            namespace.clear()
            namespace["yield_"] = st.yield_

            def inner(k):
                local = {i: [i] for i in range(10)}
                if k:
                    return inner(k - 1)
                st.yield_()
                return len(local)

            self.assertEqual(inner(n % 10), 10)
            self.assertEqual(function.pop()(n), [n] * 3)
            self.assertIs(alive(), a)
            return n

        def collect():
            while any(fiber.status != "done" for fiber in fibers):
                gc.collect()
                st.yield_()

        fibers = [st.spawn(work, n) for n in range(100)]
        finish(st.spawn(collect), *fibers)
        self.assertEqual([fiber.result for fiber in fibers], list(range(100)))

    def test_dropped_while_parked(self):
        def make(n):
            namespace = {"park": st.park}
            exec(
                "class K:\n def m(self, x):\n  park(); return (x, self.h(x))\n"
                " def h(self, x):\n  park(); return x + 1\n"
                "def outer(x):\n k = K(); kk = K\n"
                " del globals()['K']; del globals()['outer']\n"
                " r = k.m(x); park(); g = (i for i in range(3)); park()\n"
                " return r, list(g), kk.__name__\n",
                namespace,
            )
            return namespace["outer"]

        fibers = [st.spawn(make(n), n) for n in range(50)]
        while st.run():
            junk = [type("Junk", (), {"a": i}) for i in range(20)]
            del junk
            gc.collect()
            for fiber in fibers:
                st.unpark(fiber)
        self.assertEqual([f.result for f in fibers], [((n, n + 1), [0, 1, 2], "K") for n in range(50)])

    def test_state_is_traversed(self):
        """A new fiber's context takes part in a collectable cycle; a parked one reports its own."""
        marker = type("Marker", (), {})()
        var = contextvars.ContextVar("var")

        def work():
            var.set(marker)
            try:
                raise KeyError("handled")
            except KeyError:
                st.park()

        fiber = st.spawn(work)
        st.run()
        referents = gc.get_referents(fiber)
        contexts = [r for r in referents if isinstance(r, contextvars.Context)]
        self.assertEqual([c[var] for c in contexts], [marker])
        self.assertEqual([type(r) for r in referents if isinstance(r, Exception)], [KeyError])
        st.unpark(fiber)
        finish(fiber)
        referents = gc.get_referents(fiber)
        self.assertFalse([r for r in referents if isinstance(r, contextvars.Context)])

    def test_in_gc(self):
        seen = []

        class Cyclic:
            def __init__(self): self.me = self
            def __del__(self): seen.append(("finaliser", st.in_gc()))

        class Plain:
            def __del__(self): seen.append(("plain", st.in_gc()))

        def callback(phase, info):
            seen.append((phase, st.in_gc()))

        def work():
            seen.append(("before", st.in_gc()))
            Cyclic()
            Plain()
            gc.collect()
            seen.append(("after", st.in_gc()))

        gc.collect()
        gc.callbacks.append(callback)
        gc.disable()
        try:
            in_fiber(work)
        finally:
            gc.enable()
            gc.callbacks.remove(callback)
        self.assertEqual(
            seen,
            [("before", False), ("plain", False), ("start", True), ("finaliser", True),
             ("stop", True), ("after", False)],
        )

    def test_in_gc_is_about_this_thread(self):
        entered, leave = threading.Event(), threading.Event()

        class Slow:
            def __init__(self): self.me = self

            def __del__(self):
                entered.set()
                leave.wait(10)

        def collect():
            Slow()
            gc.collect()

        thread = threading.Thread(target=collect)
        thread.start()
        self.assertTrue(entered.wait(10))
        try:
            self.assertFalse(st.in_gc())
        finally:
            leave.set()
            thread.join()


class Tracing(Case):
    def work(self):
        total = 0
        for i in range(5):
            total += i
            st.yield_()
        return total

    def test_settrace_sees_every_fiber(self):
        lines = []

        def trace(frame, event, arg):
            if frame.f_code is code and event == "line":
                lines.append(st.current())
            return trace

        code = self.work.__func__.__code__
        sys.settrace(trace)
        try:
            fibers = [st.spawn(self.work) for _ in range(3)]
            st.run()
        finally:
            sys.settrace(None)
        self.assertEqual(finish(*fibers), [10] * 3)
        counts = {lines.count(fiber) for fiber in fibers}
        self.assertEqual(len(counts), 1)
        self.assertGreater(counts.pop(), 15)

    def test_setprofile(self):
        events = []

        def profile(frame, event, arg):
            if event == "c_call" and arg is st.yield_:
                events.append(st.current())

        sys.setprofile(profile)
        try:
            fibers = [st.spawn(self.work) for _ in range(3)]
            st.run()
        finally:
            sys.setprofile(None)
        self.assertEqual([events.count(fiber) for fiber in fibers], [5] * 3)

    def test_refuses_inside_a_trace_function(self):
        answers = set()

        def trace(frame, event, arg):
            if not st.current():
                return None
            answers.add(st.yield_())
            try:
                st.park()
            except RuntimeError:
                answers.add("refused")
            return trace

        def traced():
            sys.settrace(trace)
            try:
                return self.work()
            finally:
                sys.settrace(None)

        self.assertEqual(finish(*[st.spawn(traced) for _ in range(3)]), [10] * 3)
        self.assertEqual(answers, {False, "refused"})

    def test_set_in_one_fiber_while_others_are_parked(self):
        """Also the debug build's assertion on code that tracing has not rewritten."""
        events = []

        def trace(frame, event, arg):
            events.append(event)
            return trace

        def toggler():
            for _ in range(10):
                sys.settrace(trace)
                st.yield_()
                sys.settrace(None)
                st.yield_()

        fibers = [st.spawn(self.work) for _ in range(5)]
        finish(st.spawn(toggler), *fibers)
        self.assertEqual([f.result for f in fibers], [10] * 5)

    @unittest.skipIf(sys.version_info < (3, 12), "sys.monitoring came with 3.12")
    def test_monitoring_reaches_parked_frames(self):
        monitoring, tool = sys.monitoring, 4
        lines, refused = [], []

        def on_line(code, line):
            if code is target.__code__:
                lines.append(line)
                refused.append(st.yield_())

        def target():
            st.park()
            a = 1
            b = 2
            return a + b

        fiber = st.spawn(target)
        st.run()
        monitoring.use_tool_id(tool, "pystate")
        try:
            monitoring.register_callback(tool, monitoring.events.LINE, on_line)
            monitoring.set_events(tool, monitoring.events.LINE)
            st.unpark(fiber)
            self.assertEqual(finish(fiber), [3])
        finally:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)
        first = target.__code__.co_firstlineno
        self.assertEqual(lines, [first + 2, first + 3, first + 4])
        self.assertEqual(set(refused), {False})


class Introspection(Case):
    def names(self, fiber, limit=-1):
        return [entry[2] for entry in fiber.stack(limit)]

    def test_stack_of_a_parked_fiber_ends_at_its_root(self):
        def inner(n):
            try:
                raise ValueError(n)
            except ValueError:
                st.park()
                return n

        def outer(n):
            return sorted([0], key=lambda _: inner(n))

        fibers = [st.spawn(outer, n) for n in range(5)]
        self.assertEqual([f.stack(-1) for f in fibers], [[]] * 5)
        st.run()
        for fiber in fibers:
            self.assertEqual(self.names(fiber), ["inner", "<lambda>", "outer"])
            self.assertEqual(self.names(fiber, 2), ["inner", "<lambda>"])
            self.assertEqual(fiber.stack(0), [])
            filename, line, _ = fiber.stack(1)[0]
            self.assertEqual(filename, __file__)
            self.assertEqual(line, inner.__code__.co_firstlineno + 4)
        for fiber in fibers:
            st.unpark(fiber)
        finish(*fibers)
        self.assertEqual([f.stack(-1) for f in fibers], [[]] * 5)

    def test_stack_of_builtins_only(self):
        """A fiber without a Python frame shows nothing of its neighbours."""

        def neighbour():
            st.park()

        fibers = [st.spawn(neighbour), st.spawn(st.park), st.spawn(neighbour)]
        st.run()
        self.assertEqual(self.names(fibers[1]), [])
        self.assertIsNone(fibers[1].frame())
        for fiber in fibers:
            st.unpark(fiber)
        finish(*fibers)

    def test_stack_in_a_generator(self):
        def gen():
            st.park()
            yield 1

        def work():
            return list(gen())

        fiber = st.spawn(work)
        st.run()
        self.assertEqual(self.names(fiber), ["gen", "work"])
        st.unpark(fiber)
        self.assertEqual(finish(fiber), [[1]])

    def test_running_and_main(self):
        def work():
            me = st.current()
            main = [entry[2] for entry in st.main_stack()][:2]
            return [entry[2] for entry in me.stack(-1)], me.frame() is sys._getframe(), main

        self.assertEqual(
            in_fiber(work),
            (["work"], True, ["finish", "in_fiber"]),
        )

    def test_frame(self):
        def work():
            local = "here"
            st.park()
            return local

        fiber = st.spawn(work)
        self.assertIsNone(fiber.frame())
        st.run()
        frame = fiber.frame()
        self.assertIs(frame.f_code, work.__code__)
        self.assertEqual(frame.f_locals["local"], "here")
        self.assertIs(fiber.frame(), frame)
        st.unpark(fiber)
        finish(fiber)
        self.assertIsNone(fiber.frame())
        self.assertEqual(frame.f_locals["local"], "here")  # the frame outlives its fiber
        self.assertIsNone(frame.f_back)

    def test_extract_stack_inside_a_fiber(self):
        def inner():
            st.yield_()
            return [entry.name for entry in traceback.extract_stack()]

        def outer():
            return inner()

        self.assertEqual(finish(*[st.spawn(outer) for _ in range(3)]), [["outer", "inner"]] * 3)

    def test_current_frames_and_dump(self):
        def work():
            st.yield_()
            frames = sys._current_frames()
            self.assertIs(frames[threading.get_ident()], sys._getframe())
            sys._current_exceptions()
            with tempfile.TemporaryFile() as sink:
                faulthandler.dump_traceback(sink)
                sink.seek(0)
                dump = sink.read()
            self.assertIn(b"in work", dump)
            if sys.version_info >= (3, 12):  # our root frame, as a function
                self.assertIn(b'File "<runloom>", line 1 in fiber', dump)
            st.yield_()
            return frames

        parked = [st.spawn(st.park) for _ in range(3)]
        for frames in finish(*[st.spawn(work) for _ in range(3)]):
            frames.clear()
        for fiber in parked:
            st.unpark(fiber)
        finish(*parked)


class Lifetime(Case):
    def test_abandoned_fibers(self):
        held = type("Held", (), {})()
        alive = weakref.ref(held)

        def work(held):
            st.park()

        fiber = st.spawn(work, held)
        del held
        others = [st.spawn(work, None) for _ in range(4)]
        st.run()
        for dropped in (fiber, others[1]):
            st.abandon(dropped)
        gc.collect()
        self.assertIsNotNone(alive())  # leaked, not destroyed
        sys._current_frames()
        rest = [others[0], *others[2:]]
        for other in rest:
            st.unpark(other)
        finish(*rest)

    def test_fork(self):
        def work(n):
            st.yield_()
            st.park()
            return n

        def forker():
            pid = os.fork()
            if pid:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            code = 1
            try:
                gc.collect()
                sys._current_frames()
                for fiber in fibers[1:]:
                    st.abandon(fiber)
                sys.settrace(lambda *args: None)
                sys.settrace(None)
                st.yield_()
                code = 0 if [e[2] for e in fibers[0].stack(-1)] == ["work"] else 2
            finally:
                os._exit(code)

        faulthandler.cancel_dump_traceback_later()  # its thread would make the fork a warning
        fibers = [st.spawn(work, n) for n in range(5)]
        st.run()
        self.assertEqual(in_fiber(forker), 0)
        for fiber in fibers:
            st.unpark(fiber)
        self.assertEqual(finish(*fibers), list(range(5)))

    def exits_cleanly(self, code, *flags):
        result = run_python(code, *flags)
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stderr[-2000:])
        return result.stdout

    PARKED = """
def work(n):
    try:
        raise ValueError(n)
    except ValueError:
        return [st.park() for _ in range(1)]
fibers = [st.spawn(work, n) for n in range(20)]
assert st.run() == 20
"""

    def test_exit_with_parked_fibers(self):
        self.exits_cleanly(self.PARKED + "st.free_hub()")

    def test_exit_with_finished_fibers(self):
        finished = self.PARKED + "[st.unpark(f) for f in fibers]; assert st.run() == 0; del fibers\n"
        self.exits_cleanly(finished + "st.free_hub()", "-X", "dev")

    def test_hub_can_be_made_again(self):
        again = "for _ in range(50):\n f = st.spawn(st.yield_); st.run(); st.free_hub()\n"
        self.exits_cleanly(again + "assert f.status == 'done'")

    def test_hub_threads_come_and_go(self):
        threads = self.PARKED + """
import threading, gc
def hub():
    a = [st.spawn(st.yield_) for _ in range(5)]
    st.run(); st.free_hub()
for _ in range(20):
    t = [threading.Thread(target=hub) for _ in range(3)]
    [x.start() for x in t]; [x.join() for x in t]
    gc.collect(); sys.settrace(lambda *a: None); sys.settrace(None)
st.free_hub()
"""
        self.exits_cleanly(threads)


class Layout(Case):
    def test_planted_fault_is_found(self):
        self.assertIsNotNone(LAYOUT_FAULT, "the planted fault went unnoticed")
        self.assertIn("lays out PyThreadState differently", LAYOUT_FAULT)

    def test_other_minor_version_is_refused(self):
        other = {(3, 12): "3.11", (3, 13): "3.12"}.get(sys.version_info[:2])
        trees = sorted(pathlib.Path.home().glob(f".pyenv/versions/{other}.*/include/python{other}"))
        if not trees:
            self.skipTest("no headers of another version here")
        with tempfile.TemporaryDirectory() as directory:
            build(directory, [f"-I{trees[-1]}"])
            code = (
                f"import sys, os; sys.setdlopenflags(os.RTLD_LAZY); sys.path.insert(0, {directory!r})\n"
                "import pystate_selftest\npystate_selftest.init()"
            )
            result = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_LIMIT
            )
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(f"ImportError: runloom was built for Python {other} and runs under", result.stderr)


if __name__ == "__main__":
    unittest.main()
