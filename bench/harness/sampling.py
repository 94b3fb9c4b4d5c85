"""Takes the samples.

Rounds go over all groups. In a group the reference runs first, after every few subjects, and last;
the other subjects' order is shuffled each round. Host neighbours slow a machine down by a third
for seconds at a time, so a sample is compared with the reference samples just before and just
after it, never with those of another minute.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.machine import Probe, busy_seconds
from harness.model import BenchError, Group, Plan, Subject, Values

# A sample is called quiet when other processes used less than this share of one core meanwhile,
# and the cores were not slower than this against the best seen.
FOREIGN_LIMIT = 0.12
SLOW_LIMIT = 1.15
# A subject that failed this often in a row in one group is not tried again there.
GIVE_UP_AFTER = 2
SEED = 20250


@dataclass
class Sample:
    subject: str
    round: int
    position: int  # in the order of the whole run
    values: Values
    quiet: bool


@dataclass
class GroupResult:
    group: Group
    samples: list[Sample] = field(default_factory=list)
    # Why a subject has no figures, or fewer than the others. By subject.
    failures: dict[str, str] = field(default_factory=dict)

    def of(self, subject: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.subject == subject]


@dataclass
class Limits:
    rounds: int
    seconds: float  # the whole plan has to end within this
    tries: int  # a disturbed sample is taken again, up to this many times


class Sampler:
    def __init__(self, probe: Probe, limits: Limits, say: Callable[[str], None]):
        self._probe = probe
        self._limits = limits
        self._say = say
        self._random = random.Random(SEED)
        self._position = 0
        self._failed_in_a_row: dict[tuple[str, str], int] = {}

    def run(self, plan: Plan) -> list[GroupResult]:
        end = time.monotonic() + self._limits.seconds
        results = [GroupResult(group) for group in plan.groups]
        took = {group.title: self._estimate(group) for group in plan.groups}
        for number in range(self._limits.rounds):
            if time.monotonic() + min(took.values()) > end:
                self._say(f"stopped after {number} rounds: the time budget is used up")
                for result in results:
                    self._out_of_time(result)
                break
            plan.begin_round()
            try:
                for result in results:
                    title = result.group.title
                    began = time.monotonic()
                    if began + took[title] > end:
                        self._out_of_time(result)
                        continue
                    self._say(f"round {number + 1}/{self._limits.rounds}: {title}")
                    self._run_group(result, number)
                    took[title] = time.monotonic() - began
            finally:
                plan.end_round()
        return results

    @staticmethod
    def _estimate(group: Group) -> float:
        return group.seconds * len(_order([s for s in group.subjects if not s.missing], group))

    def _out_of_time(self, result: GroupResult) -> None:
        for subject in result.group.subjects:
            if not result.of(subject.name):
                result.failures.setdefault(subject.name, "not measured: the time budget is used up")

    def _run_group(self, result: GroupResult, number: int) -> None:
        group = result.group
        for subject in group.subjects:
            if subject.missing:
                result.failures[subject.name] = subject.missing
        present = [subject for subject in group.subjects if not subject.missing]
        others = [subject for subject in present if subject is not group.reference]
        self._random.shuffle(others)
        head = [group.reference] if group.reference in present else []
        for subject in _order(head + others, group):
            if self._failed_in_a_row.get((group.title, subject.name), 0) < GIVE_UP_AFTER:
                self._take(subject, result, number)

    def _take(self, subject: Subject, result: GroupResult, number: int) -> None:
        key = (result.group.title, subject.name)
        best: Sample | None = None
        least = float("inf")
        for _ in range(self._limits.tries):
            try:
                sample, disturbance = self._measure(subject, number)
            except BenchError as error:
                result.failures[subject.name] = f"failed in round {number + 1}: {error}"
                self._say(f"{subject.name}: {error}")
                self._failed_in_a_row[key] = self._failed_in_a_row.get(key, 0) + 1
                break
            self._failed_in_a_row[key] = 0
            if disturbance < least:
                best, least = sample, disturbance
            if sample.quiet:
                break
        if best:
            result.samples.append(best)

    def _measure(self, subject: Subject, number: int) -> tuple[Sample, float]:
        slow = self._probe.slowness()
        busy, began = busy_seconds(), time.monotonic()
        reading = subject.measure()
        elapsed = max(time.monotonic() - began, 1e-3)
        foreign = max(0.0, busy_seconds() - busy - reading.own_cpu) / elapsed
        slow = max(slow, self._probe.slowness())
        disturbance = max(foreign / FOREIGN_LIMIT, (slow - 1) / (SLOW_LIMIT - 1))
        self._position += 1
        sample = Sample(subject.name, number, self._position, reading.values, disturbance <= 1)
        return sample, disturbance


def _order(subjects: list[Subject], group: Group) -> list[Subject]:
    """The order of one round: the reference, where it can be measured, first, between and last."""
    if group.reference not in subjects or not group.reference_every:
        return subjects
    order = [group.reference]
    for index, subject in enumerate(s for s in subjects if s is not group.reference):
        if index and index % group.reference_every == 0:
            order.append(group.reference)
        order.append(subject)
    return [*order, group.reference] if len(order) > 1 else order
