"""What holds for every test of the Python package."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

import runloom_c

if wrapper := os.environ.get("RUNLOOM_SANITIZED"):
    # Interpreters that tests start need the sanitizers' library; other programs may hang with it.
    sys.executable = wrapper
    os.environ.pop("LD_PRELOAD", None)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test may leave a fiber or a setting behind."""
    yield
    runloom_c.set_deadlock_mode(1)
    runloom_c.set_max_fibers(0)
    left = runloom_c.fibers()
    if left:
        runloom_c.sched_reset()
    assert not left, "fibers were left behind"
