"""What a type checker sees of the package: a program that uses all of it passes mypy --strict."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "typing" / "user_program.py"
MODULES = {
    "runloom": "runloom",
    "runloom.sync": "sync",
    "runloom.tls": "tls",
    "runloom.time": "time",
    "runloom.context": "context",
    "runloom.inspect": "inspect",
    "runloom.dns": "dns",
}


@pytest.mark.timeout(200)
def test_a_users_program_passes_mypy_strict(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--config-file=",
         "--warn-unreachable", "--cache-dir", str(tmp_path), str(PROGRAM)],
        env={**os.environ, "MYPYPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.parametrize("module", MODULES)
def test_the_users_program_uses_every_public_name(module: str) -> None:
    text = PROGRAM.read_text()
    used = set(re.findall(rf"(?<![\w.]){MODULES[module]}\.(\w+)", text))
    assert set(importlib.import_module(module).__all__) - used == set()
