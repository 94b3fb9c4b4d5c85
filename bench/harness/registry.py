"""The suites: one file each in bench/suites, found by looking there.

A suite is a module with a docstring, whose first line `--list` shows, and

    def plan(context: Context) -> Plan

Its name is the file's, with hyphens. $RUNLOOM_BENCH_SUITES may name one more directory of them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.build import BENCH, Builder
from harness.machine import Cores
from harness.model import BenchError, Plan


@dataclass(frozen=True)
class Context:
    """What a suite may ask of the harness."""

    quick: bool
    cores: Cores
    builder: Builder


@dataclass(frozen=True)
class Suite:
    name: str
    summary: str
    plan: Callable[[Context], Plan]


def paths() -> dict[str, Path]:
    extra = os.environ.get("RUNLOOM_BENCH_SUITES")
    directories = [BENCH / "suites", *([Path(extra)] if extra else [])]
    return {
        path.stem.replace("_", "-"): path
        for directory in directories
        for path in sorted(directory.glob("*.py"))
        if not path.stem.startswith("_")
    }


def load(name: str) -> Suite:
    known = paths()
    if name not in known:
        raise BenchError(f"there is no suite {name!r}; there are: {', '.join(known)}")
    spec = importlib.util.spec_from_file_location(f"suite_{known[name].stem}", known[name])
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    summary = (module.__doc__ or "").strip().splitlines()
    return Suite(name, summary[0] if summary else "", module.plan)
