"""Trace functions, profile functions and sys.monitoring."""

import sys
import unittest

from pystate_harness import Case, finish, st


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


if __name__ == "__main__":
    unittest.main()
