"""Subjects that measure themselves and print a line of JSON a case (see bench/peers/micro.hpp)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from harness import process
from harness.model import BenchError, Reading, Values

SECONDS = 60.0


def measure(
    argv: process.Argv, cpus: Sequence[int], env: Mapping[str, str] | None = None
) -> Reading:
    done = process.run(argv, timeout=SECONDS, cpus=cpus, env=env)
    values: Values = {}
    try:
        for line in done.stdout.splitlines():
            row = json.loads(line)
            values[row["case"], row["unit"]] = float(row["value"])
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{process.name_of(argv)} printed {line!r}: {error}") from error
    if not values:
        raise BenchError(f"{process.name_of(argv)} printed no case")
    return Reading(values, done.cpu)
