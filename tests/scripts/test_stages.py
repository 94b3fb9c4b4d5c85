"""The stages of scripts/test: which are chosen, and that a failure of any kind is counted."""

from __future__ import annotations

import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console import ROOT, StageFailed, run
from context import Context
from results import Results
from stages import STAGES, NothingToRun, Stage, usual, with_needs

RunStage = Callable[[Stage, Context, Results, set[str]], str]


@pytest.fixture
def run_stage() -> RunStage:
    function: RunStage = runpy.run_path(str(ROOT / "scripts/runner/__main__.py"))["run_stage"]
    return function


def stage(action: Callable[[Context], Results], **options: Any) -> Stage:
    return Stage("planted", "a planted stage", 1, action, **options)


def raises(error: Exception) -> Callable[[Context], Results]:
    def action(context: Context) -> Results:
        raise error

    return action


def test_a_stage_brings_what_it_builds_on_in_order() -> None:
    names = [chosen.name for chosen in with_needs(["python"])]
    assert names == ["core", "extensions", "python"]


def test_an_unknown_stage_is_refused_by_name() -> None:
    with pytest.raises(StageFailed, match=r"no stage nonsense.*core"):
        with_needs(["nonsense"])


def test_some_stages_are_run_only_in_full_or_by_name() -> None:
    assert [each.name for each in STAGES if each not in usual(full=False)] == [
        "python-asan",
        "soak",
    ]
    assert usual(full=True) == STAGES
    assert with_needs(["python-asan"])[-1].name == "python-asan"


def test_failed_tests_count(run_stage: RunStage) -> None:
    results = Results()
    planted = stage(lambda context: Results(passed=3, failed=2))
    assert "FAILED: 3 passed, 2 failed" in run_stage(planted, Context(), results, set())
    assert (results.passed, results.failed) == (3, 2)


def test_a_stage_that_breaks_counts_as_a_failure(run_stage: RunStage) -> None:
    results, failed = Results(), set[str]()
    line = run_stage(stage(raises(StageFailed("no compiler"))), Context(), results, failed)
    assert "FAILED: no compiler" in line
    assert results.failed == 1
    assert failed == {"planted"}


def test_a_stage_is_not_run_when_its_need_failed(run_stage: RunStage) -> None:
    results = Results()
    planted = stage(lambda context: Results(passed=1), needs=("core",))
    assert "because core failed" in run_stage(planted, Context(), results, {"core"})
    assert (results.passed, results.failed) == (0, 1)


def test_nothing_to_run_is_said_and_is_not_a_pass(run_stage: RunStage) -> None:
    results = Results()
    line = run_stage(stage(raises(NothingToRun("no sources"))), Context(), results, set())
    assert "nothing to run: no sources" in line
    assert results.total == 0


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("console.LOGS", tmp_path)
    monkeypatch.setattr("console.ROOT", tmp_path)
    return tmp_path


def test_a_command_leaves_its_output_in_a_log(logs: Path) -> None:
    assert run("greeting", ["echo", "hello"], log="greet", limit=10, directory=logs) == 0
    assert "hello" in (logs / "greet.log").read_text()


def test_a_command_that_fails_is_shown(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StageFailed, match="failed with status 3"):
        run("failing", ["sh", "-c", "echo why; exit 3"], log="fail", limit=10, directory=logs)
    assert "| why" in capsys.readouterr().out


def test_a_command_that_hangs_is_ended_with_what_it_started(logs: Path) -> None:
    script = "sleep 1000 & echo $!; wait"
    with pytest.raises(StageFailed, match="took more than"):
        run("hanging", ["sh", "-c", script], log="hang", limit=1, directory=logs)
    child = int((logs / "hang.log").read_text().splitlines()[1])
    # It was sent its signal before run() returned, and may still be on its way out.
    end = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX"
    except FileNotFoundError:
        return False
