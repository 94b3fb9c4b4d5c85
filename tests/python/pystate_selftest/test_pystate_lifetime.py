"""Fork, exit, threads that come and go, and the check at import."""

import faulthandler
import gc
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback
import unittest
import weakref

import pystate_harness
from pystate_harness import HANG_LIMIT, Case, anchored, build, finish, in_fiber, run_python, st


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
                parked = 5 if sys.version_info >= (3, 12) else 0
                assert anchored().count("work") == parked, anchored()
                for fiber in fibers[1:]:
                    st.abandon(fiber)
                assert anchored().count("work") == min(1, parked), anchored()
                sys.settrace(lambda *args: None)
                sys.settrace(None)
                st.yield_()
                code = 0 if [e[2] for e in fibers[0].stack(-1)] == ["work"] else 2
            except BaseException:
                traceback.print_exc()
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
        finished = self.PARKED + "for f in fibers: st.unpark(f)\nassert st.run() == 0\n"
        self.exits_cleanly(finished + "st.free_hub()", "-X", "dev")

    def test_hub_can_be_made_again(self):
        """And leaves no thread state behind: faulthandler counts them."""
        again = """
import faulthandler
for _ in range(50):
    f = st.spawn(st.yield_); st.run(); st.free_hub()
assert f.status == 'done'
faulthandler.dump_traceback(sys.stdout)
"""
        self.assertEqual(self.exits_cleanly(again).lower().count("thread 0x"), 1)

    def test_hub_threads_come_and_go(self):
        threads = (
            self.PARKED
            + """
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
        )
        self.exits_cleanly(threads)


class Layout(Case):
    def test_planted_fault_is_found(self):
        fault = pystate_harness.load().layout_fault
        self.assertIsNotNone(fault, "the planted fault went unnoticed")
        self.assertIn("lays out PyThreadState differently", fault)

    def test_other_minor_version_is_refused(self):
        other = {(3, 12): "3.11", (3, 13): "3.12"}.get(sys.version_info[:2])
        trees = sorted(pathlib.Path.home().glob(f".pyenv/versions/{other}.*/include/python{other}"))
        if not trees:
            self.skipTest("no headers of another version here")
        with tempfile.TemporaryDirectory() as directory:
            build(directory, [f"-I{trees[-1]}"])
            code = (
                "import sys, os; sys.setdlopenflags(os.RTLD_LAZY)\n"
                f"sys.path.insert(0, {directory!r})\nimport pystate_selftest as st; st.init()"
            )
            result = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_LIMIT
            )
        self.assertEqual(result.returncode, 1, result.stderr)
        refusal = f"ImportError: runloom was built for Python {other} and runs under"
        self.assertIn(refusal, result.stderr)


if __name__ == "__main__":
    unittest.main()
