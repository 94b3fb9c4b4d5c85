"""The Python microcosts: each case that has a goal is measured, a lost fiber is noticed.

asyncio is the subject: it needs no package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
MICRO = BENCH / "peers" / "micro_py.py"
LIMIT = 60.0

GOALS = """
import sys
sys.path.insert(0, sys.argv[1])
from harness import registry
suite = registry.load("py-micro")
goals = suite.plan.__globals__["WARM_GOALS"] | suite.plan.__globals__["MANY_GOALS"]
print("\\n".join(case for case, unit in goals))
"""


def cases(*words: str) -> dict[tuple[str, str], float]:
    done = subprocess.run(
        [sys.executable, str(MICRO), "asyncio", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    rows = map(json.loads, done.stdout.splitlines())
    return {(row["case"], row["unit"]): row["value"] for row in rows}


def test_every_case_with_a_goal_is_measured() -> None:
    measured = cases("warm") | cases("many", "100000")
    assert all(value > 0 for value in measured.values())
    listed = subprocess.run(
        [sys.executable, "-c", GOALS, str(BENCH)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    goals = set(listed.stdout.splitlines())
    assert goals
    assert goals <= {case for case, unit in measured if unit == "ns"}


def test_many_and_parked_report_time_and_memory() -> None:
    many, parked = cases("many", "3000"), cases("parked", "3000")
    for measured, case in [
        (many, "spawn+run, 3000 live at once"),
        (parked, "spawn+park+end, 3000 parked at once"),
    ]:
        assert set(measured) == {(case, "ns"), (case, "bytes")}
        assert all(value > 0 for value in measured.values())


def test_a_fiber_that_did_not_run_fails_the_measurement() -> None:
    lossy = (
        "import asyncio, runpy, sys\n"
        "wait = asyncio.wait\n"
        "async def one_less(tasks):\n"
        "    tasks = list(tasks)\n"
        "    tasks[0].cancel()\n"
        "    return await wait(tasks)\n"
        "asyncio.wait = one_less\n"
        "sys.argv[:] = [sys.argv[1], 'asyncio', 'many', '10']\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", lossy, str(MICRO)], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode != 0
    assert "only 9 of 10 ran" in done.stderr
