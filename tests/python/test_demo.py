"""scripts/demo_run.py, briefly."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "scripts" / "demo_run.py"


def demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Without C++ examples and load generators, so that it depends on nothing that was built."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "RUNLOOM_EXAMPLES": str(folder / "examples"),
        "PATH": str(folder),
    }
    return subprocess.Popen(
        [sys.executable, str(DEMO), "--idle", "20", "--connections", "3", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def members(group: int) -> list[str]:
    """Processes of the process group."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                found.append(entry.name)
        except ProcessLookupError:
            pass
    return found


def test_it_prints_a_line_a_server(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "0.2") as process:
        stdout, stderr = process.communicate(timeout=30)
        assert members(process.pid) == []
    for name in ("echo, Python", "HTTP hello, Python"):
        line = re.search(
            rf"^{name} +([\d,]+) +([\d.]+) ms +([\d.]+) ms +(-?[\d.]+) KiB  asyncio$", stdout, re.M
        )
        assert line is not None, (stdout, stderr)
        assert int(line[1].replace(",", "")) > 10
    assert stdout.count("not built") == 2
    assert process.returncode == 1  # not all could be shown
    assert stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_an_interrupt_leaves_no_server_behind(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path, "--seconds", "30") as process:
        end = time.monotonic() + 10
        while len(members(process.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(number)
        process.communicate(timeout=20)
        assert members(process.pid) == []
    assert process.returncode == 130
