"""A picture of the ratios: one bar a comparison. The only user of matplotlib, which is optional."""

from __future__ import annotations

from pathlib import Path

from harness.model import BenchError
from harness.records import Record


def check_available() -> None:
    """Called before anything is measured, so that a long run does not fail at its end."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BenchError("--plot needs matplotlib: pip install matplotlib") from error


def draw(path: Path, records: list[Record]) -> None:
    """Bars by suite, case and reference, for the deciding unit of each case (its first)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = _bars(records)
    if not bars:
        raise BenchError(f"nothing to draw in {path}: no ratio was measured")
    height = max(2.5, 0.28 * len(bars) + 1.2)
    figure, axes = pyplot.subplots(figsize=(10, height), layout="constrained")
    ratios = [record["ratio"] for record in bars]
    half = [record["ratio"] * record["spread"] / 2 for record in bars]
    axes.barh(
        [_label(record) for record in bars],
        [ratio - 1 for ratio in ratios],
        left=1,  # a bar grows from "equal", to the right where ours is better
        xerr=half,
        color=["#2a7f62" if ratio >= 1 else "#c1666b" for ratio in ratios],
        ecolor="#555555",
    )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}x")
    axes.set_xlabel("times better than the reference (right of the line: runloom is better)")
    axes.invert_yaxis()
    axes.set_title(bars[0]["machine"], fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _bars(records: list[Record]) -> list[Record]:
    deciding: dict[tuple[str, str], str] = {}
    for record in records:
        deciding.setdefault((record["suite"], record["case"]), record["unit"])
    return [
        record
        for record in records
        if record["ratio"] is not None
        and record["unit"] == deciding[record["suite"], record["case"]]
    ]


def _label(record: Record) -> str:
    return (
        f"{record['suite']}: {record['case']}, {record['unit']}: "
        f"{record['subject']} / {record['reference']}"
    )
