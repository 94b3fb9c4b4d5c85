"""CPython's own tests on a fiber beside noisy ones: do as many pass as without runloom?

    python tests/cpython/run_in_fiber.py [--verbose] [MODULE...]

Runs test modules of the interpreter's own library twice, plainly and on a fiber (see suite.py),
and prints each test whose outcome differs. Exit status 1 when one does that differences.txt does
not explain.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
LIMIT = 240.0  # seconds for one module
# Those of the normal stage: what a switch exchanges.
QUICK = [
    "test_generators", "test_coroutines", "test_raise", "test_with", "test_contextlib",
    "test_context", "test_generator_stop", "test_yield_from",
]  # fmt: skip
MODULES = [
    *QUICK,
    "test_asyncgen", "test_augassign", "test_binop", "test_bisect", "test_bool", "test_bytes",
    "test_call", "test_class", "test_collections", "test_compare", "test_contains",
    "test_contextlib_async", "test_copy", "test_dataclasses", "test_decimal", "test_decorators",
    "test_defaultdict", "test_deque", "test_descr", "test_dict", "test_enum",
    "test_except_star", "test_exception_group", "test_exceptions", "test_extcall", "test_float",
    "test_format", "test_fractions", "test_funcattrs", "test_functools", "test_gc",
    "test_genericalias", "test_global", "test_heapq", "test_int", "test_iter", "test_itertools",
    "test_json", "test_keywordonlyarg", "test_list", "test_long", "test_memoryio",
    "test_memoryview", "test_monitoring", "test_named_expressions", "test_operator",
    "test_ordered_dict", "test_patma", "test_pickle", "test_positional_only_arg", "test_property",
    "test_range", "test_re", "test_scope", "test_set", "test_slice", "test_sort", "test_string",
    "test_struct", "test_super", "test_sys_setprofile", "test_sys_settrace",
    "test_threading_local", "test_traceback", "test_tuple", "test_types", "test_unpack",
    "test_unpack_ex", "test_userdict", "test_weakref", "test_weakset",
]  # fmt: skip


@dataclass
class Comparison:
    module: str
    tests: int = 0
    passed: int = 0  # on a fiber
    differences: dict[str, str] = field(default_factory=dict)  # test: "passed -> failed" and why
    explained: dict[str, str] = field(default_factory=dict)
    crash: str = ""

    @property
    def good(self) -> bool:
        return not self.differences and not self.crash


def exists(module: str) -> bool:
    """Whether this interpreter has the module; distributions leave the tests out."""
    return find_spec("test") is not None and find_spec(f"test.{module}") is not None


def explanations() -> dict[str, str]:
    """From differences.txt: the reason by "VERSION test", where VERSION may be *."""
    known = {}
    for line in (HERE / "differences.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            version, test, reason = line.split(maxsplit=2)
            known[f"{version} {test}"] = reason
    return known


def explain(test: str) -> str | None:
    known = explanations()
    name = test.split(" ")[0]
    version = "{}.{}".format(*sys.version_info)
    return known.get(f"{version} {name}") or known.get(f"* {name}")


def run_one(how: str, module: str) -> tuple[dict[str, dict[str, str]] | None, str]:
    """The report, or None and the end of what was printed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(each) for each in paths)
        }  # fmt: skip
        command = [sys.executable, HERE / "suite.py", how, module, report]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, errors="replace",
                timeout=LIMIT, check=False, stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            output = error.stderr or b""
            text = output.decode(errors="replace") if isinstance(output, bytes) else output
            return None, f"no end after {LIMIT:.0f} s\n{text[-3000:]}"
        if not report.exists():
            return (
                None,
                f"exit status {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-5000:]}",
            )
        loaded: dict[str, dict[str, str]] = json.loads(report.read_text())
        return loaded, done.stderr


def compare(module: str) -> Comparison:
    result = Comparison(module)
    plain, output = run_one("plain", module)
    if plain is None:
        result.crash = f"plainly: {output}"
        return result
    fiber, output = run_one("fiber", module)
    if fiber is None:
        result.crash = f"on a fiber: {output}"
        return result
    result.tests = len(plain["outcomes"])
    result.passed = sum(each == "passed" for each in fiber["outcomes"].values())
    for test in sorted({*plain["outcomes"], *fiber["outcomes"]}):
        before = plain["outcomes"].get(test, "absent")
        after = fiber["outcomes"].get(test, "absent")
        if before == after:
            continue
        reason = explain(test)
        if reason is not None:
            result.explained[test] = reason
        else:
            text = fiber["texts"].get(test, plain["texts"].get(test, ""))
            result.differences[test] = f"{before} -> {after}\n{text}"
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=[each for each in MODULES if exists(each)])
    parser.add_argument("--verbose", action="store_true", help="print why each test failed")
    options = parser.parse_args()
    bad = 0
    for module in options.modules:
        result = compare(module)
        state = "good" if result.good else "BAD"
        print(f"{state:4} {module}: {result.passed} of {result.tests} passed on a fiber, "
              f"{len(result.explained)} explained differences", flush=True)  # fmt: skip
        if result.crash:
            print(f"     {result.crash}")
        for test, text in result.differences.items():
            print(f"     {test}: {text if options.verbose else text.splitlines()[0]}")
        bad += not result.good
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
