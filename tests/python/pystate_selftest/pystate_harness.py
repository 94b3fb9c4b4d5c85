"""Builds selftest.c, a tiny fiber runtime on python/bindings/pystate.c, and helps to drive it.

The tests beside this file need no runloom and no pytest; any of the supported interpreters runs
them, each with its own headers:

    python -m unittest discover -s tests/python/pystate_selftest

CC names the compiler (gcc); PYSTATE_CFLAGS adds flags, for instance -I of another header tree.
"""

import atexit
import contextlib
import functools
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BINDINGS = HERE.parents[2] / "python" / "bindings"
HANG_LIMIT = 60


def build(directory, includes):
    """Compile the extension into directory with the given -I flags."""
    command = [os.environ.get("CC", "gcc"), "-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]
    command += ["-fPIC", "-shared", "-fvisibility=hidden", f"-I{BINDINGS}", *includes]
    command += os.environ.get("PYSTATE_CFLAGS", "").split()
    command += [str(HERE / "selftest.c"), str(BINDINGS / "pystate.c")]
    command += ["-o", f"{directory}/pystate_selftest.so", "-lboost_context"]
    subprocess.run(command, check=True, timeout=120)


@functools.cache
def build_directory():
    directory = tempfile.TemporaryDirectory(prefix="pystate_selftest_")
    atexit.register(directory.cleanup)
    paths = sysconfig.get_paths()
    includes = dict.fromkeys((paths["include"], paths["platinclude"]))
    build(directory.name, [f"-I{path}" for path in includes])
    return directory.name


@functools.cache
def load():
    """Build and import the extension once a process."""
    sys.path.insert(0, build_directory())
    import pystate_selftest as extension

    extension.layout_fault = None  # what the import check says of a fault planted before it
    try:
        extension.check_planted_fault()
    except ImportError as error:
        extension.layout_fault = str(error)
    extension.init()
    os.register_at_fork(after_in_child=extension.after_fork)
    atexit.register(extension.free_hub)
    return extension


class Extension:
    """The extension's functions, built when the first one is used."""

    def __getattr__(self, name):
        self.__dict__.update(vars(load()))
        return self.__dict__[name]


st = Extension()


def run_python(code, *flags):
    """Run code in a fresh interpreter that has the extension as `st`."""
    head = (
        f"import sys; sys.path.insert(0, {build_directory()!r})\n"
        "import pystate_selftest as st; st.init()\n"
    )
    command = [sys.executable, *flags, "-c", head + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_LIMIT)


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


def anchored():
    """Names of the functions in the anchor's chain, innermost first."""
    threads = {thread.ident for thread in threading.enumerate()}
    frames = [frame for ident, frame in sys._current_frames().items() if ident not in threads]
    names = []
    for frame in frames:
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
    return names


class Case(unittest.TestCase):
    with contextlib.suppress(ImportError):  # the interpreter may have no pytest
        import pytest

        pytestmark = pytest.mark.version_sensitive

    def setUp(self):
        self.live = st.stats()["live"]

    def tearDown(self):
        self.assertEqual(st.stats()["live"], self.live, "fibers were left over")

    def sizes(self, c_size, data_size=8192):
        """Give the fibers of this test other stacks."""
        self.addCleanup(st.configure, *st.configure(c_size, data_size))
