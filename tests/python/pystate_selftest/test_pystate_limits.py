"""What is limited or counted: recursion, data stack, deallocation, references."""

import contextvars
import gc
import json
import pathlib
import pickle
import re
import sys
import unittest
import weakref

from pystate_harness import Case, finish, in_fiber, st


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
            def __getattr__(self, name):
                return getattr(self, name + "x")

        class Repr:
            def __repr__(self):
                return repr(self)

        class Eq:
            def __eq__(self, other):
                return self == other

        def sort_key(_):
            return sorted([1, 2], key=sort_key)

        def nested(n):
            value = []
            for _ in range(n):
                value = [value]
            return value

        def work():
            cases = [lambda: GetAttr().q, lambda: repr(Repr()), lambda: Eq() == Eq()]
            if sys.version_info >= (3, 12):  # 3.11 has one limit for cheap and for dear calls
                cases += [lambda: sort_key(1), lambda: list(map(sort_key, [1]))]
            cases += [lambda: json.loads("[" * 100_000)]
            for case in cases:
                self.assertRaises(RecursionError, case)
                st.yield_()
            deep = nested(100_000)
            for write in (repr, json.dumps, pickle.dumps):
                self.assertRaises(RecursionError, write, deep)
                st.yield_()
            del deep  # deallocation, 100,000 levels deep, on this stack
            st.yield_()
            self.assertEqual(json.loads(json.dumps(nested(200))), nested(200))
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

    def test_very_small_stacks_work(self):
        class Nest:
            def __init__(self, below):
                self.below = below

            def __repr__(self):
                return f"<{self.below!r}>"

        def work():
            nest = None
            for _ in range(12):
                nest = Nest(nest)
            return repr(nest)

        self.sizes(128 * 1024 if sys.version_info >= (3, 14) else 64 * 1024)
        self.assertEqual(in_fiber(work), "<" * 12 + "None" + ">" * 12)

    @unittest.skipIf(sys.version_info >= (3, 14), "the trashcan looks at addresses")
    def test_small_stacks_still_deallocate(self):
        class Node:
            def __init__(self, below):
                self.below = below

            def __del__(self):
                dead.append(1)

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
        status = pathlib.Path("/proc/self/status").read_text()
        return int(re.search(r"VmSize:\s+(\d+)", status)[1])

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
            __slots__ = ("__weakref__", "below")

            def __init__(self, below):
                self.below = below

            def __del__(self):
                st.yield_()
                dead.append(1)

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

    def test_main_deallocates_while_fibers_park_in_nested_finalisers(self):
        class Parks:
            def __del__(self):
                st.park()

        class Thing:
            pass

        def work():
            nest = Parks()
            for _ in range(30):  # the trashcan defers from a depth of 50
                nest = (nest,)
            del nest

        fibers = [st.spawn(work) for _ in range(4)]
        self.assertEqual(st.run(), 4)
        thing = Thing()
        alive = weakref.ref(thing)
        nest = [(thing,)]
        del thing, nest
        self.assertIsNone(alive())
        for fiber in fibers:
            st.unpark(fiber)
        finish(*fibers)

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
                for _ in (x for x in held):
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
        for value, now, then in zip(watched, after, before, strict=True):
            self.assertLess(abs(now - then), 20, value)  # after 1,000 fibers
        self.assertLess(abs(sys.getallocatedblocks() - blocks), 100)
        self.assertLess(abs(total() - references), 200)


if __name__ == "__main__":
    unittest.main()
