"""Stacks and frames of fibers, and what the interpreter's own tools see."""

import faulthandler
import gc
import sys
import tempfile
import threading
import traceback
import unittest

from pystate_harness import Case, anchored, finish, in_fiber, st


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

    def test_stack_while_the_collector_is_due(self):
        """Its finaliser lets the very fiber run that is looked at."""

        class Cyclic:
            def __init__(self):
                self.me = self

            def __del__(self):
                st.unpark(fiber)
                st.run()

        def work():
            st.park()

        fiber = st.spawn(lambda: work())
        st.run()
        threshold = gc.get_threshold()
        gc.collect()
        gc.disable()
        Cyclic()
        gc.set_threshold(1)
        gc.enable()
        try:
            stack = fiber.stack(-1)
        finally:
            gc.set_threshold(*threshold)
        self.assertEqual([entry[2] for entry in stack], ["work", "<lambda>"])
        gc.collect()
        self.assertEqual(fiber.status, "done")

    @unittest.skipIf(sys.version_info < (3, 12), "there is no anchor")
    def test_anchor_shows_exactly_the_parked(self):
        def make(name):
            namespace = {"park": st.park}
            exec(f"def {name}():\n  park()\n  park()\n", namespace)
            return st.spawn(namespace[name])

        def watch():
            seen.append(anchored())

        def parked(*names):
            self.assertEqual(anchored(), list(names))
            st.spawn(watch)
            st.run()
            tail = seen.pop()
            self.assertEqual(tail[: len(names)], list(names))
            self.assertEqual(tail[len(names) : len(names) + 2], ["parked", me])  # the main context

        seen = []
        me = sys._getframe().f_code.co_name
        parked()
        a, b, c = make("a"), make("b"), make("c")
        st.run()
        parked("c", "b", "a")
        st.unpark(b)
        st.run()
        parked("b", "c", "a")
        for fiber in (b, a):  # b ends, a parks again
            st.unpark(fiber)
        st.run()
        parked("a", "c")
        for fiber in (a, c, c):
            st.unpark(fiber)
            st.run()
        parked()

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


if __name__ == "__main__":
    unittest.main()
