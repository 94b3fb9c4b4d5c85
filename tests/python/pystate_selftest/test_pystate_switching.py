"""Switching between fibers: frames, handled exceptions, generators, coroutines, contexts."""

import asyncio
import contextvars
import gc
import sys
import threading
import traceback
import unittest

from pystate_harness import Case, finish, in_fiber, run_python, st


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
        def switching(function):
            def slot(*args):
                st.yield_()
                return function(*args)

            return slot

        class K:
            def __init__(self, v):
                self.v = v

            __getattr__ = switching(lambda self, name: name)
            __lt__ = switching(lambda self, other: self.v < other.v)
            __eq__ = switching(lambda self, other: self.v == other.v)
            __hash__ = switching(lambda self: 1)
            __repr__ = switching(lambda self: f"K{self.v}")
            __call__ = switching(lambda self, x: x + self.v)
            __enter__ = switching(lambda self: self)
            __exit__ = switching(lambda self, *exc: None)
            __iter__ = switching(lambda self: iter(range(self.v)))

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
        self.assertTrue(sys._getframe().f_code.co_name.startswith("test_main_is_neutral"))
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
                for test in (
                    Switching("test_inside_c_slots"),
                    Exceptions("test_nested_handlers"),
                    Generators("test_all_kinds"),
                ):
                    getattr(test, test._testMethodName)()
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


if __name__ == "__main__":
    unittest.main()
