"""bench/compare itself: its figures mean what they say, and nothing that failed is hidden.

The suites here are fakes whose subjects cost nothing: shell commands that print their figures.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPARE = ROOT / "bench" / "compare"
KEYS = {
    "suite",
    "case",
    "subject",
    "reference",
    "value",
    "reference_value",
    "unit",
    "ratio",
    "rounds",
    "spread",
    "machine",
}
HANG_LIMIT = 10.0

HEADER = '''"""{summary}"""
from harness import lines
from harness.model import Group, Metric, Plan, Subject, missing

def subject(name, script, ours=False):
    return Subject(name, lambda: lines.measure(["sh", "-c", script], ()), ours)

def figures(ns, rate):
    return (f"""echo '{{"case": "c", "value": {ns}, "unit": "ns"}}'; """
            f"""echo '{{"case": "c", "value": {rate}, "unit": "req/s"}}'""")

METRICS = [Metric("ns"), Metric("req/s", higher_is_better=True)]
'''

HEALTHY = """
def plan(context):
    return Plan([Group("group", [
        subject("plain", figures(30, 500)),
        subject("ours", figures(10, 1000), ours=True),
        subject("peer", figures(20, 2000)),
    ], METRICS, {("c", "ns"): 5}, seconds=0.01)], ["a note"])
"""

SICK = """
def plan(context):
    return Plan([Group("group", [
        subject("plain", figures(30, 500)),
        subject("ours", figures(10, 1000), ours=True),
        subject("broken", "echo it broke >&2; exit 3"),
        subject("killed", "kill -SEGV $$"),
        subject("mute", "true"),
        missing("absent", "absent-dev is not installed"),
    ], METRICS, seconds=0.01)])
"""


@pytest.fixture
def suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "suites"
    directory.mkdir()
    monkeypatch.setenv("RUNLOOM_BENCH_SUITES", str(directory))
    monkeypatch.setenv("RUNLOOM_BENCH_BUILD", str(tmp_path / "build"))
    return directory


def write_suite(directory: Path, name: str, body: str, summary: str = "A fake") -> None:
    text = HEADER.replace("{summary}", summary) + textwrap.dedent(body)
    (directory / f"{name}.py").write_text(text)


def compare(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, COMPARE, "--no-build", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=50,
    )


def records_of(directory: Path, *words: str) -> tuple[list[dict[str, Any]], str, int]:
    path = directory / "records.json"
    done = compare("--json", path, *words)
    assert path.exists(), done.stderr
    return json.loads(path.read_text()), done.stdout, done.returncode


def one(records: list[dict[str, Any]], **wanted: str) -> dict[str, Any]:
    found = [r for r in records if all(r[key] == value for key, value in wanted.items())]
    assert len(found) == 1, found
    return found[0]


def test_records_have_the_documented_keys_and_ratios(suites: Path) -> None:
    write_suite(suites, "fake", HEALTHY)
    records, output, status = records_of(suites, "--rounds", "3", "fake")
    assert status == 0
    assert all(set(record) == KEYS for record in records)
    assert {record["subject"] for record in records} == {"ours"}
    assert {record["suite"] for record in records} == {"fake"}
    # Lower is better for ns, higher for req/s; above 1 means ours is better in both.
    expected = {
        ("plain", "ns"): (10, 30, 3.0),
        ("peer", "ns"): (10, 20, 2.0),
        ("goal", "ns"): (10, 5, 0.5),
        ("plain", "req/s"): (1000, 500, 2.0),
        ("peer", "req/s"): (1000, 2000, 0.5),
    }
    assert len(records) == len(expected)
    for (reference, unit), (value, reference_value, ratio) in expected.items():
        record = one(records, reference=reference, unit=unit)
        assert (record["value"], record["reference_value"]) == (value, reference_value)
        assert record["ratio"] == pytest.approx(ratio)
        assert (record["rounds"], record["spread"]) == (3, 0)
    assert "a note" in output
    assert "20.0 (1.50x)" in output  # the peer against the reference


def test_what_failed_is_reported(suites: Path) -> None:
    write_suite(suites, "fake", SICK)
    records, output, status = records_of(suites, "--quick", "fake")
    assert status == 1
    reasons = {
        "broken": "ended with exit status 3: it broke",
        "killed": "was killed by SIGSEGV",
        "mute": "printed no case",
        "absent": "absent-dev is not installed",
    }
    for subject, reason in reasons.items():
        record = one(records, reference=subject, unit="ns")
        assert record["value"] == 10
        assert record["reference_value"] is None
        assert record["ratio"] is None
        assert reason in record["error"]
        assert f"**{subject}**" in output
        assert reason in output
    assert one(records, reference="plain", unit="ns")["ratio"] == pytest.approx(3)


def test_a_peer_that_is_not_installed_is_no_failure(suites: Path) -> None:
    body = HEALTHY.replace('subject("peer", figures(20, 2000))', 'missing("peer", "no such thing")')
    write_suite(suites, "fake", body)
    records, output, status = records_of(suites, "--quick", "fake")
    assert status == 0
    assert "no such thing" in output
    assert "no such thing" in one(records, reference="peer", unit="ns")["error"]


def test_ours_missing_is_a_failure(suites: Path) -> None:
    body = HEALTHY.replace(
        'subject("ours", figures(10, 1000), ours=True)', 'missing("ours", "not built", ours=True)'
    )
    write_suite(suites, "fake", body)
    records, _, status = records_of(suites, "--quick", "fake")
    assert status == 1
    record = one(records, reference="plain", unit="ns")
    assert (record["value"], record["reference_value"], record["ratio"]) == (None, 30, None)
    assert "not built" in record["error"]


def test_a_used_up_budget_is_reported(suites: Path) -> None:
    write_suite(suites, "fake", HEALTHY.replace("seconds=0.01", "seconds=60"))
    records, output, status = records_of(suites, "--budget", "5", "fake")
    assert status == 1
    assert "time budget" in output
    assert all("time budget" in record["error"] for record in records)


def test_list_and_unknown_suites(suites: Path) -> None:
    write_suite(suites, "fake_one", HEALTHY, summary="Says what it is")
    listed = compare("--list")
    assert listed.returncode == 0
    assert "fake-one" in listed.stdout
    assert "Says what it is" in listed.stdout
    for suite in ("micro", "cpp-echo", "udp-echo", "py-sync-echo", "memory"):
        assert suite in listed.stdout
    unknown = compare("no-such-suite")
    assert unknown.returncode == 2
    assert "fake-one" in unknown.stderr


def test_sigterm_reaps_the_children(suites: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = f"""
    def plan(context):
        return Plan([Group("group", [
            subject("ours", "echo $$ > {pid_file}; sleep 1000", ours=True),
        ], METRICS)])
    """
    write_suite(suites, "fake", body)
    running = subprocess.Popen(
        [sys.executable, COMPARE, "--no-build", "fake"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        child = int(wait_for(lambda: pid_file.exists() and pid_file.read_text().strip()))
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=HANG_LIMIT) == 128 + signal.SIGTERM
        wait_for(lambda: not is_running(child))
    finally:
        running.kill()
        running.wait()


def wait_for(condition: Any) -> Any:
    end = time.monotonic() + HANG_LIMIT
    while not (value := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    return value


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- The parts, without a process ---


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    names = ("model", "process", "records", "sampling")
    yield type("Harness", (), {name: importlib.import_module(f"harness.{name}") for name in names})
    for name in [name for name in sys.modules if name.split(".")[0] == "harness"]:
        del sys.modules[name]


def result_of(harness: Any, samples: list[tuple[str, int, float]], metric: Any) -> Any:
    """Samples as (subject, round, value), in the order in which they were taken."""
    subjects = [
        harness.model.Subject(name, lambda: None, ours=name == "ours")
        for name in ("ref", "ours", "peer")
    ]
    group = harness.model.Group("g", subjects, [metric])
    result = harness.sampling.GroupResult(group)
    result.samples = [
        harness.sampling.Sample(name, number, position, {("c", metric.source): value}, True)
        for position, (name, number, value) in enumerate(samples)
    ]
    return result


def test_a_slow_phase_of_the_machine_cancels_out(harness: Any) -> None:
    metric = harness.model.Metric("ns")
    # Ours costs what the reference costs and the peer twice that, while the machine gets three
    # times slower; by plain figures the peer, measured in the fast phase, looks better than ours.
    samples = [
        ("ref", 0, 10.0),
        ("peer", 0, 20.0),
        ("ref", 0, 10.0),
        ("ref", 1, 30.0),
        ("ours", 1, 30.0),
        ("ref", 1, 30.0),
        ("peer", 1, 60.0),
        ("ref", 1, 30.0),
    ]
    analysis = harness.records.Analysis(result_of(harness, samples, metric))
    assert analysis.ratio("ours", "ref", "c", metric) == pytest.approx(1.0)
    assert analysis.ratio("ours", "peer", "c", metric) == pytest.approx(2.0)
    assert analysis.ratio("peer", "ref", "c", metric) == pytest.approx(0.5)


def test_a_sample_is_compared_with_the_references_on_both_sides(harness: Any) -> None:
    metric = harness.model.Metric("ns")
    samples = [("ref", 0, 10.0), ("ours", 0, 15.0), ("ref", 0, 20.0), ("ref", 0, 999.0)]
    analysis = harness.records.Analysis(result_of(harness, samples, metric))
    assert analysis.ratio("ours", "ref", "c", metric) == pytest.approx(1.0)


def test_bests_are_taken_from_equally_many_samples(harness: Any) -> None:
    metric = harness.model.Metric("best ns", best_of="ns")
    # The reference's lucky 5 was measured where no sample of ours could have had the same luck.
    samples = [
        ("ref", 0, 10.0),
        ("ours", 0, 10.0),
        ("ref", 0, 5.0),
        ("ref", 1, 12.0),
        ("ours", 1, 8.0),
        ("ref", 1, 12.0),
    ]
    analysis = harness.records.Analysis(result_of(harness, samples, metric))
    assert analysis.value("ours", "c", metric) == 8.0
    assert analysis.ratio("ours", "ref", "c", metric) == pytest.approx(10 / 8)


def test_disturbed_samples_do_not_count_where_enough_quiet_ones_are(harness: Any) -> None:
    metric = harness.model.Metric("ns")
    samples = [
        sample
        for number, value in enumerate([10.0, 10.0, 10.0, 40.0, 40.0])
        for sample in (("ref", number, 10.0), ("ours", number, value), ("ref", number, 10.0))
    ]
    result = result_of(harness, samples, metric)
    for sample in result.samples:
        sample.quiet = sample.round < 3
    analysis = harness.records.Analysis(result)
    assert analysis.ratios("ours", "ref", "c", metric) == pytest.approx([1.0, 1.0, 1.0])


def test_spread_is_the_interquartile_range_over_the_median(harness: Any) -> None:
    assert harness.records.spread([1.0]) == 0
    assert harness.records.spread([0.8, 0.9, 1.0, 1.1, 1.2]) == pytest.approx(0.2)


def test_a_process_that_hangs_is_killed_with_its_children(harness: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(harness.model.BenchError, match="did not end within"):
        harness.process.run(["sh", "-c", f"sleep 1000 & echo $! > {pid_file}; wait"], timeout=0.5)
    wait_for(lambda: not is_running(int(pid_file.read_text())))


def test_a_child_is_pinned(harness: Any) -> None:
    cpu = min(os.sched_getaffinity(0))
    done = harness.process.run(
        ["sh", "-c", "grep Cpus_allowed_list /proc/self/status"], timeout=HANG_LIMIT, cpus=[cpu]
    )
    assert done.stdout.split() == ["Cpus_allowed_list:", str(cpu)]
