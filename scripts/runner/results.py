"""Test results: counts, and how they are read from the JUnit files that ctest and pytest write."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

OUTPUT_LINES = 40


@dataclass
class Results:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)  # name and output of each failed test

    def add(self, other: Results) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped

    def __str__(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return text + (f", {self.skipped} skipped" if self.skipped else "")


def read_junit(path: Path) -> Results:
    results = Results()
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.get("name", "?")
        module = case.get("classname", "")
        if module and module != name:
            name = f"{module}.{name}"
        bad = next((child for child in case if child.tag in ("failure", "error")), None)
        skipped = case.find("skipped")
        # ctest also calls a test skipped that it could not start; a test that skips itself says so.
        not_started = (
            case.get("status") == "notrun"
            and skipped is not None
            and not (skipped.get("message") or "").startswith("SKIP_")
        )
        if bad is not None or not_started:
            results.failed += 1
            results.failures.append(f"{name}\n{_output(case, bad if bad is not None else skipped)}")
        elif skipped is not None or case.get("status") == "disabled":
            results.skipped += 1
        else:
            results.passed += 1
    return results


def _output(case: ElementTree.Element, reason: ElementTree.Element | None) -> str:
    parts = []
    if reason is not None:
        parts.append((reason.text or reason.get("message") or "").strip())
    parts += [(case.findtext(tag) or "").strip() for tag in ("system-out", "system-err")]
    lines = "\n".join(part for part in parts if part).splitlines()
    return "\n".join(f"    | {line}" for line in lines[-OUTPUT_LINES:])
