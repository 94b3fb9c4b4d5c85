"""coverage.py counts the lines of each file, whatever fibers are in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

coverage = pytest.importorskip("coverage")

pytestmark = pytest.mark.version_sensitive

MODULES = {
    "one": """
        from runloom_c import sched_yield

        def run(n):
            total = 0
            for i in range(n):
                sched_yield()
                if i == 1:
                    total += 10
                total += i
            if total > 10**9:
                total = "never"
                sched_yield()
            return total
    """,
    "two": """
        import runloom.sync as sync

        def helper(x):
            sync.sleep(0)
            return x

        def numbers(n):
            for i in range(n):
                sync.yield_now()
                yield i
            sync.yield_now()


        def run(n):
            total = 0
            while n:
                total += helper(n)
                n -= 1

            try:
                with sync.Lock():
                    helper(1)
                raise ValueError
            except ValueError:

                sync.yield_now()

                total += sum(numbers(3))
            except KeyError:
                total = "never"
            return total
    """,
    "three": """
        from runloom_c import sched_yield

        def deep(n):
            if n == 0:
                sched_yield()

                return 0
            below = deep(n - 1)
            sched_yield()
            return below + 1

        class Context:
            def __enter__(self):
                sched_yield()
            def __exit__(self, *_):

                sched_yield()

        def run(n):
            with Context():
                deep(n * 5)
            if n < 0:
                return "never"
            return [deep(i) for i in range(n)]
    """,
}
# `start` is what differs: all at once on fibers, or one after the other on the main one.
PROGRAM = """
    import sys
    import runloom.sync as sync
    import one, two, three

    TASKS = [(each, n) for n in (3, 4) for each in (one, two, three)]

    def together():
        fibers = [sync.fiber(each.run, n) for each, n in TASKS]
        for fiber in fibers:
            fiber.join()

    def alone():
        for each, n in TASKS:
            each.run(n)

    sync.run(globals()[sys.argv[1]])
"""


def environment(core: str, **more: str) -> dict[str, str]:
    path = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
    return {**os.environ, "COVERAGE_CORE": core, "PYTHONPATH": path, **more}


CORES = ["ctrace"] + (["sysmon"] if sys.version_info >= (3, 12) else [])


def counted(folder: Path, how: str, core: str, branches: bool) -> dict[str, Any]:
    """What coverage.py says of each module."""
    for name, text in {**MODULES, "program": PROGRAM}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    arguments = ["--branch"] if branches else []
    for command in (
        ["run", "--include", f"{folder}/*", *arguments, "program.py", how],
        ["json", "-q", "-o", f"{how}.json"],
    ):
        subprocess.run(
            [sys.executable, "-m", "coverage", *command],
            cwd=folder, check=True, timeout=60,
            env=environment(core, COVERAGE_FILE=str(folder / how)),
        )  # fmt: skip
    files = json.loads((folder / f"{how}.json").read_text())["files"]
    keys = ["executed_lines", "missing_lines"]
    if branches:
        keys += ["executed_branches", "missing_branches"]
    return {name: {key: found[key] for key in keys} for name, found in files.items()}


@pytest.mark.parametrize("branches", [False, True], ids=["lines", "branches"])
@pytest.mark.parametrize("core", CORES)
def test_lines_are_counted_as_without_switches(core: str, branches: bool, tmp_path: Path) -> None:
    alone = counted(tmp_path, "alone", core, branches)
    together = counted(tmp_path, "together", core, branches)
    del alone["program.py"], together["program.py"]  # of which another half runs
    assert sorted(together) == ["one.py", "three.py", "two.py"]
    assert together == alone
    assert all(found["missing_lines"] for found in alone.values())  # the lines with "never"
    assert len(alone["two.py"]["executed_lines"]) > 15


@pytest.mark.parametrize("core", CORES)
def test_a_measurement_that_begins_and_ends_among_fibers(core: str, tmp_path: Path) -> None:
    """Frames that were there before are not the tracer's; those that come later are."""
    (tmp_path / "one.py").write_text(textwrap.dedent(MODULES["one"]))
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
            import coverage, runloom_c, sys
            import one
            from functools import partial

            def early():
                for _ in range(10):
                    runloom_c.sched_yield()
                return 1

            def main():
                before = [runloom_c.go(early) for _ in range(3)]
                runloom_c.sched_yield()
                measure = coverage.Coverage(include=["one.py"], data_file=None)
                measure.start()
                fibers = [runloom_c.go(partial(one.run, n)) for n in (3, 4)]
                for each in fibers:
                    each.join()
                measure.stop()
                assert [each.join() for each in before] == [1, 1, 1]
                runloom_c.go(partial(one.run, 5)).join()
                _, lines, _, missing, _ = measure.analysis2("one.py")
                print(sorted(missing))

            runloom_c._run_main(main)
        """)
    )
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env=environment(core), check=False,
    )  # fmt: skip
    # Not the import and the def, which ran before, and what never runs.
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2, 4, 12, 13]\n", ""), done


def test_a_deep_stack_of_python_frames(tmp_path: Path) -> None:
    """More frames than a fiber's stack has room for calls of C."""
    (tmp_path / "program.py").write_text(
        textwrap.dedent("""
            import runloom_c

            def deep(n):
                if n:
                    return deep(n - 1) + 1
                runloom_c.sched_yield()
                return 0

            fibers = [runloom_c.go(lambda: deep(900)) for _ in range(5)]
            runloom_c.run()
            print([each.result for each in fibers])
        """)
    )
    done = subprocess.run(
        [sys.executable, "-m", "coverage", "run", "program.py"], cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
        env=environment("ctrace"),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{[900] * 5}\n"), done
