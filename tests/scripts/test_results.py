"""Counting: a test that failed, or that could not be started, never counts as passed or skipped."""

from __future__ import annotations

from pathlib import Path

from results import Results, read_junit

CTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="Linux" tests="5" failures="1" disabled="1" skipped="2">
  <testcase name="Fiber.T1_runs" classname="Fiber.T1_runs" time="0.1" status="run">
    <system-out>fine</system-out>
  </testcase>
  <testcase name="Fiber.T2_breaks" classname="Fiber.T2_breaks" time="0.1" status="fail">
    <failure message="Failed"/><system-out>expected 1, got 2</system-out>
  </testcase>
  <testcase name="Fiber.Skips" classname="Fiber.Skips" time="0.1" status="notrun">
    <skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
  </testcase>
  <testcase name="Fiber.NoProgram" classname="Fiber.NoProgram" time="0" status="notrun">
    <skipped message="Unable to find executable"/>
  </testcase>
  <testcase name="Fiber.Off" classname="Fiber.Off" time="0" status="disabled"/>
</testsuite>
"""

PYTEST = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
  <testcase classname="tests.python.test_tcp" name="test_echo" time="0.1"/>
  <testcase classname="tests.python.test_tcp" name="test_bad" time="0.1">
    <failure message="AssertionError">assert 1 == 2</failure>
  </testcase>
  <testcase classname="tests.python.test_tcp" name="test_error" time="0.1">
    <error message="failed on setup">no fixture</error>
  </testcase>
  <testcase classname="tests.python.test_tcp" name="test_skip" time="0.1">
    <skipped message="no IPv6">here</skipped>
  </testcase>
</testsuite></testsuites>
"""


def read(tmp_path: Path, text: str) -> Results:
    path = tmp_path / "report.xml"
    path.write_text(text)
    return read_junit(path)


def test_ctest_report(tmp_path: Path) -> None:
    results = read(tmp_path, CTEST)
    assert (results.passed, results.failed, results.skipped) == (1, 2, 2)
    assert "Fiber.T2_breaks" in results.failures[0]
    assert "expected 1, got 2" in results.failures[0]
    assert "Unable to find executable" in results.failures[1]


def test_pytest_report(tmp_path: Path) -> None:
    results = read(tmp_path, PYTEST)
    assert (results.passed, results.failed, results.skipped) == (1, 2, 1)
    assert "tests.python.test_tcp.test_bad" in results.failures[0]
    assert "assert 1 == 2" in results.failures[0]


def test_last_line() -> None:
    results = Results(passed=2)
    results.add(Results(failed=1, failures=["x"]))
    assert str(results) == "2 passed, 1 failed"
    results.add(Results(skipped=3))
    assert str(results) == "2 passed, 1 failed, 3 skipped"
    assert results.total == 6
