"""Imports from fibers, and what refuses to be imported."""

from __future__ import annotations

import importlib
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fiber_support import LIMIT, output, parked, run, script

import runloom_c
from runloom_c import go, sched_yield

pytestmark = pytest.mark.version_sensitive


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name: str, body: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(body))
        importlib.invalidate_caches()

    yield write  # type: ignore[misc]
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_who_imports_a_module_whose_body_waits_waits_too(
    modules: Callable[[str, str], None],
) -> None:
    modules(
        "slow_module",
        """
        import runloom_c
        first = 1
        for _ in range(20):
            runloom_c.sched_sleep(0.001)
        last = 2
        """,
    )

    def load() -> tuple[int, int]:
        import slow_module  # type: ignore[import-not-found]

        return slow_module.first, slow_module.last

    def main() -> None:
        handles = [go(load) for _ in range(5)]
        ticks = 0
        while not all(g.done for g in handles):
            runloom_c.sched_sleep(0.001)
            ticks += 1
        assert ticks > 2  # the thread was not stopped meanwhile
        assert [g.join() for g in handles] == [(1, 2)] * 5

    run(main)


def test_a_body_runs_once(modules: Callable[[str, str], None]) -> None:
    modules(
        "counted_module",
        """
        import builtins, runloom_c
        builtins.count_of_bodies = getattr(builtins, "count_of_bodies", 0) + 1
        for _ in range(5):
            runloom_c.sched_yield()
        """,
    )

    def main() -> None:
        for g in [go(lambda: importlib.import_module("counted_module")) for _ in range(10)]:
            g.join()

    import builtins

    run(main)
    assert builtins.count_of_bodies == 1  # type: ignore[attr-defined]
    del builtins.count_of_bodies  # type: ignore[attr-defined]


def test_a_body_that_fails_lets_the_next_one_try(modules: Callable[[str, str], None]) -> None:
    modules("broken_module", "import runloom_c; runloom_c.sched_yield(); raise ValueError('body')")

    def main() -> None:
        for g in [go(lambda: importlib.import_module("broken_module")) for _ in range(3)]:
            with pytest.raises(ValueError, match="body"):
                g.join()

    run(main)


def test_imports_in_a_circle_end(modules: Callable[[str, str], None]) -> None:
    for name, other in (("circle_a", "circle_b"), ("circle_b", "circle_a")):
        modules(name, f"import runloom_c\nrunloom_c.sched_sleep(0.01)\nimport {other}\nx = 1\n")

    def load(name: str) -> int:
        return int(importlib.import_module(name).x)

    def main() -> None:
        handles = [go(lambda: load("circle_a")), go(lambda: load("circle_b"))]
        assert [g.join(LIMIT) for g in handles] == [1, 1]

    run(main)


def test_a_cancelled_importer_leaves_the_module_importable(
    modules: Callable[[str, str], None],
) -> None:
    modules("parked_module", "import runloom_c\nrunloom_c.sched_sleep(0.05)\nx = 1\n")

    def load() -> int:
        return int(importlib.import_module("parked_module").x)

    def main() -> None:
        first = go(load)
        second = go(load)
        parked(first, second)
        second.cancel()
        third = go(load)
        with pytest.raises(BaseException):  # noqa: B017
            second.join()
        assert first.join() == 1
        assert third.join() == 1

    run(main)


def test_threads_and_fibers_import_the_same_module(modules: Callable[[str, str], None]) -> None:
    modules("shared_module", "import time\ntime.sleep(0.02)\nx = 1\n")
    seen: list[int] = []

    def load() -> None:
        seen.append(importlib.import_module("shared_module").x)

    def main() -> None:
        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        for g in [go(load) for _ in range(3)]:
            g.join()
        while any(thread.is_alive() for thread in threads):
            sched_yield()

    run(main)
    assert seen == [1] * 5


def test_an_import_that_drives_fibers(modules: Callable[[str, str], None]) -> None:
    modules("worker_module", "x = 1")
    modules(
        "driving_module",
        """
        import runloom
        def main():
            import worker_module
            global result
            result = worker_module.x
        runloom.run(1, main)
        """,
    )
    assert importlib.import_module("driving_module").result == 1


def test_P10_a_sub_interpreter_is_refused() -> None:
    code = """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        import sys
        code = '''if 1:
            import sys
            sys.path[:] = %r
            try:
                import runloom_c
            except ImportError as error:
                print(type(error).__name__, "interpreter" in str(error), flush=True)
        ''' % sys.path
        def attempt():
            new = interpreters.create()
            getattr(interpreters, "exec", None) and interpreters.exec(new, code) or \\
                getattr(interpreters, "run_string", None) and interpreters.run_string(new, code)
            interpreters.destroy(new)
        attempt()
        import runloom_c
        runloom_c.go(int)
        attempt()
        print(runloom_c.run())
    """
    done = script(code)
    lines = done.stdout.splitlines()
    assert lines[-1] == "1", done
    assert set(lines[:-1]) == {"ImportError True"}, done
    assert done.returncode == 0, done


def test_importing_it_costs_little_and_changes_little() -> None:
    code = """
        import sys
        before = set(sys.modules)
        import runloom_c
        import signal, threading
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        print(threading.active_count(), sys.gettrace(), signal.set_wakeup_fd(-1))
    """
    assert output(code) == "True\n1 None -1\n"


def test_it_may_be_imported_a_second_time() -> None:
    code = """
        import sys
        import runloom_c
        runloom_c.go(int)
        del sys.modules["runloom_c"]
        import runloom_c as again
        print(runloom_c.run())
    """
    done = script(code)
    assert done.returncode in (0, 1), done
    assert "Segmentation" not in done.stderr
