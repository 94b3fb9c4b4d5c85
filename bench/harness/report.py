"""What a person reads: one table a case, and how ours compares with each peer."""

from __future__ import annotations

from collections.abc import Iterator

from harness.model import Metric, Subject
from harness.records import Analysis, spread
from harness.sampling import GroupResult


def tables(suite: str, result: GroupResult) -> Iterator[str]:
    """Markdown, so that a run can be pasted into a document."""
    analysis = Analysis(result)
    cases = analysis.cases()
    if not cases:
        yield f"### {suite}: {result.group.title}\n\nNothing was measured.\n"
    for case in cases:
        yield _table(suite, analysis, case)
    if result.failures:
        failures = sorted(result.failures.items())
        yield "".join(f"- **{subject}**: {reason}\n" for subject, reason in failures)


def _table(suite: str, analysis: Analysis, case: str) -> str:
    metrics = analysis.metrics(case)
    rows = [["subject", *(metric.unit for metric in metrics)]]
    for subject in analysis.group.subjects:
        cells = [_cell(analysis, subject, case, metric) for metric in metrics]
        if any(cells):
            rows.append([subject.name, *(cell or "-" for cell in cells)])
    goals = [analysis.group.goals.get((case, metric.unit)) for metric in metrics]
    if any(goal is not None for goal in goals):
        rows.append(["goal", *("" if goal is None else figure(goal) for goal in goals)])
    quiet = sum(sample.quiet for sample in analysis.result.samples)
    rounds = len({sample.round for sample in analysis.result.samples})
    lines = [
        f"### {suite}: {case}",
        "",
        f"Reference: {analysis.group.reference.name}; {rounds} rounds, "
        f"{quiet} of {len(analysis.result.samples)} samples quiet.",
        "",
        *_markdown(rows),
        "",
        *_comparison(analysis, case, metrics),
    ]
    return "\n".join(lines)


def _cell(analysis: Analysis, subject: Subject, case: str, metric: Metric) -> str:
    value = analysis.value(subject.name, case, metric)
    if value is None:
        return ""
    reference = analysis.group.reference
    if subject is reference:
        return figure(value)
    ratio = analysis.ratio(subject.name, reference.name, case, metric)
    return figure(value) if ratio is None else f"{figure(value)} ({times(ratio)})"


def _comparison(analysis: Analysis, case: str, metrics: list[Metric]) -> Iterator[str]:
    """Ours against each peer by the first, deciding, metrics of the case: how many times better."""
    for subject in analysis.group.subjects:
        if not subject.ours:
            continue
        for metric in metrics[:2]:
            against = []
            for other in analysis.group.subjects:
                ratio = analysis.ratio(subject.name, other.name, case, metric)
                if other.ours or ratio is None:
                    continue
                ratios = analysis.ratios(subject.name, other.name, case, metric)
                against.append(f"{other.name} {times(ratio)} (±{spread(ratios) / 2:.0%})")
            if against:
                yield f"{subject.name}, {metric.unit}, against " + ", ".join(against)
                yield ""


def times(ratio: float) -> str:
    if ratio >= 100:
        return f"{ratio:,.0f}x"
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def figure(value: float) -> str:
    """Three significant digits, or all of a larger integer's."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _markdown(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        first, *rest = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "| " + " | ".join([first, *rest]) + " |"
        if index == 0:
            rules = ["-" * width for width in widths]
            yield "| " + " | ".join([rules[0], *(rule[:-1] + ":" for rule in rules[1:])]) + " |"
