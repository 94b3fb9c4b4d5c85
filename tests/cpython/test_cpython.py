"""CPython's own tests, as run_in_fiber.py runs them: a few, or with RUNLOOM_FULL=1 all it lists."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import run_in_fiber

CHOSEN = run_in_fiber.MODULES if os.environ.get("RUNLOOM_FULL") else run_in_fiber.QUICK

pytestmark = pytest.mark.timeout(3 * run_in_fiber.LIMIT, method="thread")


@pytest.mark.parametrize("module", CHOSEN)
def test_as_many_pass_on_a_fiber(module: str) -> None:
    if not run_in_fiber.exists(module):
        pytest.skip(f"this Python has no test.{module}")
    result = run_in_fiber.compare(module)
    assert not result.crash, result.crash
    assert not result.differences, "\n".join(
        f"{test}: {text}" for test, text in result.differences.items()
    )
    assert result.passed > 0


def test_each_explanation_has_a_reason() -> None:
    for key, reason in run_in_fiber.explanations().items():
        version, test = key.split()
        assert version in ("*", "3.11", "3.12", "3.13")
        assert test.split(".")[1] in run_in_fiber.MODULES
        assert len(reason) > 10
