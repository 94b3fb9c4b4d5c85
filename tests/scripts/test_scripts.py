"""The scripts that people call: help, and errors that say what to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    )


@pytest.mark.parametrize("script", ["setup", "demo", "test", "format"])
def test_help(script: str) -> None:
    process = call(f"scripts/{script}", "--help")
    assert process.returncode == 0
    assert process.stdout.startswith(f"usage: scripts/{script}")


@pytest.mark.parametrize("script", ["setup", "demo", "test"])
def test_an_unknown_argument_is_refused_before_anything_is_done(script: str) -> None:
    process = call(f"scripts/{script}", "--nonsense")
    assert process.returncode != 0
    assert "unknown argument: --nonsense" in process.stderr


def test_a_python_that_is_not_there_is_named() -> None:
    script = "source scripts/lib/pythons.sh; find_python 3.99 || no_python_message 3.99"
    process = call("bash", "-c", script)
    assert "Python 3.99 with headers and venv was not found. Install it" in process.stdout


def test_found_pythons_are_real_paths_of_that_version() -> None:
    process = call("bash", "-c", "source scripts/lib/pythons.sh; find_all_pythons")
    lines = [line.split(maxsplit=1) for line in process.stdout.splitlines()]
    assert lines, process.stderr
    for version, path in lines:
        assert "shims" not in Path(path).parts
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        assert call(path, "-c", code).stdout.strip() == version
