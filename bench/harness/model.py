"""What a suite hands to the harness.

A suite's plan() returns groups. A group holds subjects that do the same thing: the first one is
the reference, those marked `ours` are runloom's, the rest are peers. Measuring a subject once
gives a Reading: one value for each case and unit. A case is one line of work ("yield", "64 B x 64
connections"); a unit says what was measured of it ("ns", "requests/s").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# (case, unit) -> value
Values = dict[tuple[str, str], float]


class BenchError(Exception):
    """A subject, or a step before it, failed. The text is shown to the user."""


@dataclass(frozen=True)
class Metric:
    """How the samples of one unit become one figure and one ratio."""

    unit: str
    higher_is_better: bool = False
    # The best sample instead of the median: what the subject costs when nothing disturbs it.
    best_of: str | None = None

    @property
    def source(self) -> str:
        """The unit under which readings carry this metric's samples."""
        return self.best_of or self.unit

    def ratio(self, value: float, reference: float) -> float:
        """How many times better than `reference` `value` is."""
        over, under = (value, reference) if self.higher_is_better else (reference, value)
        return over / under if under else float("inf")

    def best(self, values: list[float]) -> float:
        return max(values) if self.higher_is_better else min(values)


@dataclass
class Reading:
    """One measurement. `own_cpu` is the CPU time, in seconds, that the measured processes used:
    what the machine was busy with beyond that is a disturbance."""

    values: Values
    own_cpu: float = 0.0


@dataclass
class Subject:
    name: str
    measure: Callable[[], Reading]
    ours: bool = False
    # Why it cannot be measured here at all (not installed, not built). Reported, never hidden.
    missing: str = ""


def missing(name: str, why: str, ours: bool = False) -> Subject:
    """A subject that cannot be measured here: it stands in the results with the reason."""

    def measure() -> Reading:
        raise BenchError(why)

    return Subject(name, measure, ours, missing=why)


@dataclass
class Group:
    title: str
    subjects: list[Subject]
    metrics: list[Metric]
    # Figures to reach, by (case, unit). They appear as a reference called "goal".
    goals: Values = field(default_factory=dict)
    # The reference is measured again after this many other subjects; 0: once a round is enough.
    reference_every: int = 2
    # An estimate of one measurement in seconds, for the time budget.
    seconds: float = 0.5

    @property
    def reference(self) -> Subject:
        return self.subjects[0]


def _nothing() -> None:
    pass


@dataclass
class Plan:
    groups: list[Group]
    # Versions and remarks to print above the tables.
    notes: list[str] = field(default_factory=list)
    # Called around each round: a round starts from fresh processes.
    begin_round: Callable[[], None] = _nothing
    end_round: Callable[[], None] = _nothing
