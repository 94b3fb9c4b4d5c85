"""Turns samples into ratios and JSON records.

A record compares one of our subjects with one other subject, or with a goal, in one case and unit:

  suite, case, subject, reference, unit
  value, reference_value
            the two figures: medians of the samples, or the best ones where the unit says so
  ratio     above 1: ours is better. The median of the rounds' ratios, each of samples taken close
            together, so it repeats better than value / reference_value does
  rounds    how many rounds the ratio comes from
  spread    of these rounds' ratios: interquartile range / median
  machine   what it was measured on

Where one of the two was not measured, its value and the ratio are null and `error` says why.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.model import Metric, Subject
from harness.sampling import GroupResult, Sample

Record = dict[str, Any]

# Quiet samples alone decide where at least this many rounds have them.
ENOUGH_QUIET = 3


class Analysis:
    """The figures of one group."""

    def __init__(self, result: GroupResult):
        self.result = result
        self.group = result.group
        self._metrics = {metric.unit: metric for metric in self.group.metrics}

    def cases(self) -> list[str]:
        """In the order in which the subjects report them, ours first: a peer may lack some."""
        seen: dict[str, None] = {}
        by_ours_first = sorted(self.group.subjects, key=lambda subject: not subject.ours)
        for subject in by_ours_first:
            for sample in self.result.of(subject.name):
                seen.update(dict.fromkeys(case for case, _ in sample.values))
        seen.update(dict.fromkeys(case for case, _ in self.group.goals))
        return list(seen)

    def metrics(self, case: str) -> list[Metric]:
        """Those that anybody has figures, or a goal, for in this case."""
        units = {
            unit for sample in self.result.samples for name, unit in sample.values if name == case
        }
        units |= {unit for name, unit in self.group.goals if name == case}
        return [metric for metric in self.group.metrics if metric.source in units]

    def value(self, subject: str, case: str, metric: Metric) -> float | None:
        values = [
            sample.values[case, metric.source]
            for sample in self._chosen(subject)
            if (case, metric.source) in sample.values
        ]
        if not values:
            return None
        return metric.best(values) if metric.best_of else statistics.median(values)

    def ratios(self, subject: str, other: str, case: str, metric: Metric) -> list[float]:
        """How many times better than `other` `subject` was, one figure a round."""
        ours = self._by_round(subject, case, metric)
        theirs = self._by_round(other, case, metric)
        common = sorted(ours.keys() & theirs.keys())
        if other == self.group.reference.name:
            bracketed = (ours[number][1] for number in common)
            return [ratio for ratio in bracketed if ratio is not None]
        ratios = []
        for number in common:
            (our_value, our_ratio), (their_value, their_ratio) = ours[number], theirs[number]
            if our_ratio is not None and their_ratio:
                ratios.append(our_ratio / their_ratio)
            else:
                # The reference does not know this case: all there is are two samples of one round.
                ratios.append(metric.ratio(our_value, their_value))
        return ratios

    def ratio(self, subject: str, other: str, case: str, metric: Metric) -> float | None:
        if metric.best_of:
            return self._ratio_of_bests(subject, other, case, metric)
        ratios = self.ratios(subject, other, case, metric)
        return statistics.median(ratios) if ratios else None

    def _ratio_of_bests(self, subject: str, other: str, case: str, metric: Metric) -> float | None:
        """The reference is sampled several times a round, which would give it more chances to be
        at its best: of each round one sample counts, the one taken just before the subject's."""
        mine, theirs = [], []
        for sample in self._chosen(subject):
            value = sample.values.get((case, metric.source))
            candidates = [
                (peer.position, peer.values[case, metric.source])
                for peer in self.result.of(other)
                if peer.round == sample.round and (case, metric.source) in peer.values
            ]
            if value is not None and candidates:
                mine.append(value)
                before = [c for c in candidates if c[0] < sample.position]
                theirs.append(max(before)[1] if before else min(candidates)[1])
        return metric.ratio(metric.best(mine), metric.best(theirs)) if mine else None

    def error(self, subject: str, case: str) -> str:
        return self.result.failures.get(subject, f"{subject} has no case {case!r}")

    def _chosen(self, subject: str) -> list[Sample]:
        every = self.result.of(subject)
        quiet = [sample for sample in every if sample.quiet]
        return quiet if len({sample.round for sample in quiet}) >= ENOUGH_QUIET else every

    def _by_round(
        self, subject: str, case: str, metric: Metric
    ) -> dict[int, tuple[float, float | None]]:
        """Per round: the subject's value, and its ratio to the reference samples around it."""
        found: dict[int, tuple[float, float | None]] = {}
        for sample in self._chosen(subject):
            value = sample.values.get((case, metric.source))
            if value is not None:
                found[sample.round] = (value, self._bracketed(sample, value, case, metric))
        return found

    def _bracketed(self, sample: Sample, value: float, case: str, metric: Metric) -> float | None:
        reference = [
            (other.position, other.values[case, metric.source])
            for other in self.result.of(self.group.reference.name)
            if other.round == sample.round and (case, metric.source) in other.values
        ]
        before = max((r for r in reference if r[0] < sample.position), default=None)
        after = min((r for r in reference if r[0] > sample.position), default=None)
        near = [r[1] for r in (before, after) if r]
        return metric.ratio(value, statistics.mean(near)) if near else None


def spread(ratios: list[float]) -> float:
    """Interquartile range over median; 0 for a single round."""
    if len(ratios) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (high - low) / middle


def make(suite: str, result: GroupResult, machine: str) -> list[Record]:
    """All records of a group: each of our subjects against each other one, and the goals."""
    analysis = Analysis(result)
    return [
        record
        for case in analysis.cases()
        for metric in analysis.metrics(case)
        for subject in result.group.subjects
        if subject.ours
        for record in _compare(suite, analysis, subject, case, metric, machine)
    ]


def _compare(
    suite: str, analysis: Analysis, subject: Subject, case: str, metric: Metric, machine: str
) -> Iterator[Record]:
    value = analysis.value(subject.name, case, metric)

    def record(reference: str, reference_value: float | None, ratios: list[float]) -> Record:
        return {
            "suite": suite,
            "case": case,
            "subject": subject.name,
            "reference": reference,
            "value": _rounded(value),
            "reference_value": _rounded(reference_value),
            "unit": metric.unit,
            "ratio": None,
            "rounds": len(ratios),
            "spread": round(spread(ratios), 4),
            "machine": machine,
        }

    for other in analysis.group.subjects:
        if other.ours:
            continue
        ratios = analysis.ratios(subject.name, other.name, case, metric)
        made = record(other.name, analysis.value(other.name, case, metric), ratios)
        made["ratio"] = _rounded(analysis.ratio(subject.name, other.name, case, metric))
        if made["ratio"] is None:
            absent = subject.name if value is None else other.name
            made["error"] = analysis.error(absent, case)
        yield made

    goal = analysis.group.goals.get((case, metric.unit))
    if goal is not None:
        ratios = [
            metric.ratio(sample.values[case, metric.source], goal)
            for sample in analysis.result.of(subject.name)
            if (case, metric.source) in sample.values
        ]
        made = record("goal", goal, ratios)
        if value is None:
            made["error"] = analysis.error(subject.name, case)
        else:
            made["ratio"] = _rounded(metric.ratio(value, goal))
        yield made


def _rounded(value: float | None) -> float | None:
    """Six significant digits: more than any sample has."""
    return None if value is None else float(f"{value:.6g}")


def write(path: Path, records: list[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records, indent=1) + "\n")
