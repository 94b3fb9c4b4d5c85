"""Runs one test module of CPython: python suite.py plain|fiber MODULE REPORT.json

With `fiber` it runs on a fiber beside noisy ones, and its own code is compiled with a switch of
fibers at the begin of every function, loop, handler and with block. The report has the outcome
of every test.
"""

from __future__ import annotations

import ast
import builtins
import faulthandler
import importlib.abc
import importlib.machinery
import json
import sys
import tempfile
import unittest
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

# What looks at its own frames and instructions, where a call more would be seen.
NOT_CHANGED = {
    "test_sys_settrace", "test_sys_setprofile", "test_monitoring", "test_bdb", "test_trace",
}  # fmt: skip
YIELD = "_runloom_yield"
BUSY = 20_000  # switches after which not every place has one any more


class Switches(ast.NodeTransformer):
    """Puts a switch at the begin of every block that runs by itself."""

    def _into(self, body: list[ast.stmt]) -> list[ast.stmt]:
        first = body[0]
        has_docstring = (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        )
        at = 1 if has_docstring else 0
        if at == len(body):
            return body
        call = ast.Expr(ast.Call(ast.Name(YIELD, ast.Load()), [], []))
        for node in ast.walk(call):
            ast.copy_location(node, body[at])
            if hasattr(node, "end_lineno"):
                node.end_lineno, node.end_col_offset = node.lineno, node.col_offset
        return [*body[:at], call, *body[at:]]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        blocks = (
            ast.FunctionDef | ast.AsyncFunctionDef | ast.For | ast.AsyncFor | ast.While
            | ast.With | ast.AsyncWith | ast.ExceptHandler
        )  # fmt: skip
        if isinstance(node, blocks):
            node.body = self._into(node.body)
        if isinstance(node, ast.Try) and node.finalbody:
            node.finalbody = self._into(node.finalbody)
        return node


class SwitchingLoader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        return compile(Switches().visit(tree), path, "exec", dont_inherit=True)


class SwitchingFinder(importlib.abc.MetaPathFinder):
    """Loads test modules, and only those, with switches."""

    def __init__(self, module: str) -> None:
        self.module = f"test.{module}"

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.module and not name.startswith(f"{self.module}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = SwitchingLoader(spec.loader.name, spec.loader.path)
        return spec


class Outcomes(unittest.TestResult):
    """The outcome of each test by its name; what did not pass with its text."""

    def __init__(self, between: Callable[[], object]) -> None:
        super().__init__()
        self._between = between  # called before and after each test
        self.outcomes: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self._names: Counter[str] = Counter()
        self._name = ""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._names[test.id()] += 1
        count = self._names[test.id()]
        self._name = test.id() if count == 1 else f"{test.id()} #{count}"
        self.outcomes[self._name] = "passed"
        self._between()

    def stopTest(self, test: unittest.TestCase) -> None:
        self._between()
        super().stopTest(test)

    def _failed(self, test: Any, error: Any) -> None:
        # What fails in setUpClass or at the import is no test that has begun.
        name = test.id() if "ErrorHolder" in type(test).__name__ else self._name
        self.outcomes[name] = "failed"
        self.texts[name] = self.texts.get(name, "") + self._exc_info_to_string(error, test)

    def addError(self, test: Any, error: Any) -> None:
        self._failed(test, error)

    def addFailure(self, test: Any, error: Any) -> None:
        self._failed(test, error)

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        if error is not None:
            self._failed(test, error)

    def addSkip(self, test: Any, reason: str) -> None:
        if self.outcomes.get(self._name) != "failed":
            self.outcomes[self._name] = "skipped"

    def addExpectedFailure(self, test: Any, error: Any) -> None:
        self.outcomes[self._name] = "failed as expected"

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.outcomes[self._name] = "passed unexpectedly"


def run_suite(module: str, between: Callable[[], object] = int) -> Outcomes:
    from test import support

    support.use_resources = []  # no network, no gigabytes
    result = Outcomes(between)
    suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{module}")
    with warnings.catch_warnings():
        suite.run(result)
    return result


def run_on_fiber(module: str) -> Outcomes:
    from noise import Noises

    import runloom_c

    results: list[Outcomes] = []

    def main() -> None:
        noises = Noises()
        result = run_suite(module, switch)
        noises.stop()
        assert noises.rounds >= len(result.outcomes), "the noise did not come to its turn"
        results.append(result)

    passed = 0

    def switch() -> None:
        # Loops of a million rounds have fewer.
        nonlocal passed
        passed += 1
        if passed > BUSY and passed % (passed // BUSY):
            return
        try:
            runloom_c.sched_yield()
        except RuntimeError:
            pass  # inside of the collector or of a trace function, where no fiber can wait

    setattr(builtins, YIELD, switch)
    if module not in NOT_CHANGED:
        sys.meta_path.insert(0, SwitchingFinder(module))
    runloom_c._run_main(main)
    return results[0]


def main() -> None:
    how, module, report = sys.argv[1:]
    faulthandler.enable()
    del sys.argv[1:]
    result = run_suite(module) if how == "plain" else run_on_fiber(module)
    Path(report).write_text(json.dumps({"outcomes": result.outcomes, "texts": result.texts}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main()
