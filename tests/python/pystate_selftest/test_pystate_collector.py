"""The cyclic collector while fibers are parked."""

import contextvars
import gc
import threading
import unittest
import weakref

from pystate_harness import Case, finish, in_fiber, st


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
        for n, fiber in enumerate(fibers):
            self.assertEqual(fiber.result, ((n, n + 1), [0, 1, 2], "K"))

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
            def __init__(self):
                self.me = self

            def __del__(self):
                seen.append(("finaliser", st.in_gc()))

        class Plain:
            def __del__(self):
                seen.append(("plain", st.in_gc()))

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
            [
                ("before", False),
                ("plain", False),
                ("start", True),
                ("finaliser", True),
                ("stop", True),
                ("after", False),
            ],
        )

    def test_in_gc_is_about_this_thread(self):
        entered, leave = threading.Event(), threading.Event()

        class Slow:
            def __init__(self):
                self.me = self

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


if __name__ == "__main__":
    unittest.main()
