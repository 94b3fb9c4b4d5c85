"""Builds what a suite runs: C++ and Go programs, virtual environments with the Python peers.

Everything lands under build/bench ($RUNLOOM_BENCH_BUILD), the environments beside it in
build/bench-venv and build/bench-venv-published. $RUNLOOM_BENCH_PYTHON chooses the interpreter of
the Python subjects; the default is the one that runs bench/compare.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness import process
from harness.model import BenchError

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"

_BUILD_SECONDS = 3600
# As the preset "release" has it: what is installed is what is measured.
_FLAGS = "-O2 -g -DNDEBUG"
# A package that could not be installed is not tried again for this long: each try may cost a
# minute. Removing the environment's directory tries at once.
_RETRY_AFTER = 24 * 3600


@dataclass
class Environment:
    """A virtual environment. `missing` says, by package, why one is not in it."""

    python: Path
    missing: dict[str, str]
    versions: dict[str, str]

    def why_not(self, *packages: str) -> str:
        return "; ".join(self.missing[name] for name in packages if name in self.missing)


class Builder:
    def __init__(self, say: Callable[[str], None], enabled: bool = True):
        self._say = say
        self._enabled = enabled
        configured = os.environ.get("RUNLOOM_BENCH_BUILD")
        self.directory = Path(configured).resolve() if configured else ROOT / "build" / "bench"
        self._programs_built = False

    # --- C++ and Go ---

    def program(self, name: str) -> Path | None:
        """The path of a program of bench/CMakeLists.txt, or None where it cannot be built."""
        self._build_programs()
        path = self.directory / "bench" / "bin" / name
        return path if path.exists() else None

    def _build_programs(self) -> None:
        if self._programs_built or not self._enabled:
            return
        self._say(f"building the programs in {self.directory}")
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        self._step(
            "configure",
            [
                *("cmake", "-S", str(ROOT), "-B", str(self.directory), *generator),
                "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                f"-DCMAKE_C_FLAGS_RELWITHDEBINFO={_FLAGS}",
                f"-DCMAKE_CXX_FLAGS_RELWITHDEBINFO={_FLAGS}",
                "-DRUNLOOM_BENCH=ON",
                "-DRUNLOOM_TESTS=OFF",
                "-DRUNLOOM_EXAMPLES=OFF",
            ],
        )
        jobs = str(len(os.sched_getaffinity(0)))
        self._step("build", ["cmake", "--build", self.directory, "--target", "bench", "-j", jobs])
        self._programs_built = True

    def _step(self, name: str, argv: process.Argv) -> None:
        """Runs a step whose output is long: when it fails the output stands in a log."""
        try:
            process.run(argv, timeout=_BUILD_SECONDS)
        except process.ChildError as error:
            log = self.directory / f"{name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(error.output)
            raise BenchError(f"{name} failed, see {log}") from error

    @cached_property
    def versions(self) -> str:
        """Of the compiler and of what the C++ and Go peers are built with."""
        found = []
        cache = self.directory / "CMakeCache.txt"
        text = cache.read_text() if cache.exists() else ""
        entries = dict(re.findall(r"^(\w+):\w+=(.*)$", text, re.MULTILINE))
        compiler = entries.get("CMAKE_CXX_COMPILER", "")
        if compiler:
            found.append(_first_line([compiler, "--version"]))
        boost = re.search(r"Boost-([\d.]+)", entries.get("Boost_DIR", ""))
        if boost:
            found.append(f"Boost {boost.group(1)}")
        go = entries.get("RUNLOOM_BENCH_GO", "")
        if go and not go.endswith("NOTFOUND"):
            found.append(_first_line([go, "version"]).removeprefix("go version "))
        return ", ".join(found)

    # --- Python ---

    def environment(
        self, suffix: str, packages: list[str], python: str | None = None
    ) -> Environment:
        """The environment build/bench-`suffix` with the packages installed, each on its own: one
        that cannot be had does not keep the others out."""
        directory = self.directory.with_name(f"{self.directory.name}-{suffix}")
        interpreter = python or os.environ.get("RUNLOOM_BENCH_PYTHON") or sys.executable
        inside = directory / "bin" / "python"
        stamp = _Stamp(directory / "bench-stamp.json")
        if self._enabled:
            if not inside.exists() or stamp.interpreter != interpreter:
                self._say(f"creating {directory}")
                process.run([interpreter, "-m", "venv", "--clear", directory], timeout=300)
                stamp.reset(interpreter)
            for package in packages:
                self._install(inside, stamp, package)
        missing = {
            package: stamp.failures.get(package, "not installed")
            for package in packages
            if package not in stamp.installed
        }
        versions = _versions(inside, packages) if inside.exists() else {}
        return Environment(inside, missing, versions)

    def _install(self, inside: Path, stamp: _Stamp, package: str) -> None:
        if package in stamp.installed or stamp.failed_lately(package):
            return
        self._say(f"installing {package}")
        try:
            self._pip_install(inside, package, f"install-{package}")
        except BenchError as error:
            stamp.failed(package, str(error))
        else:
            stamp.succeeded(package)

    def install_runloom(self, environment: Environment) -> str:
        """Installs this tree's Python package. Returns why that is not possible, or ""."""
        if not (ROOT / "pyproject.toml").exists():
            return "this tree has no Python package"
        stamp = _Stamp(environment.python.parents[1] / "bench-stamp.json")
        tree = _fingerprint()
        if stamp.tree == tree:
            return ""
        if not self._enabled:
            return "not installed, or not the present sources (--no-build)"
        self._say("installing runloom from this tree")
        try:
            self._pip_install(environment.python, str(ROOT), "install-this-tree")
        except BenchError as error:
            return str(error)
        stamp.installed_tree(tree)
        return ""

    def _pip_install(self, python: Path, what: str, step: str) -> None:
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
        self._step(step, [*pip, "--retries", "1", "--timeout", "20", what])


class _Stamp:
    """What an environment has, kept in it: a run in which nothing changed asks pip nothing."""

    def __init__(self, path: Path):
        self._path = path
        self._data: dict[str, object] = {}
        if path.exists():
            self._data = json.loads(path.read_text())

    @property
    def interpreter(self) -> object:
        return self._data.get("interpreter")

    @property
    def tree(self) -> object:
        return self._data.get("tree")

    @property
    def installed(self) -> list[str]:
        return self._data.setdefault("installed", [])  # type: ignore[return-value]

    @property
    def failures(self) -> dict[str, str]:
        return self._data.setdefault("failures", {})  # type: ignore[return-value]

    @property
    def _failure_times(self) -> dict[str, float]:
        return self._data.setdefault("failure_times", {})  # type: ignore[return-value]

    def failed_lately(self, package: str) -> bool:
        return time.time() - self._failure_times.get(package, 0) < _RETRY_AFTER

    def reset(self, interpreter: str) -> None:
        self._data = {"interpreter": interpreter}
        self._save()

    def succeeded(self, package: str) -> None:
        self.installed.append(package)
        self.failures.pop(package, None)
        self._save()

    def failed(self, package: str, why: str) -> None:
        self.failures[package] = why
        self._failure_times[package] = time.time()
        self._save()

    def installed_tree(self, tree: str) -> None:
        self._data["tree"] = tree
        self._save()

    def _save(self) -> None:
        self._path.write_text(json.dumps(self._data, indent=1))


def _versions(python: Path, packages: list[str]) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json, platform, sys\n"
        "v = {'Python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: v[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(v))"
    )
    names = [re.split(r"[=<>!~]", package)[0] for package in packages]
    try:
        return dict(json.loads(process.run([python, "-c", code, *names], timeout=60).stdout))
    except BenchError:
        return {}


def _fingerprint() -> str:
    """Of all that goes into the Python package."""
    digest = hashlib.sha256()
    tops = ["src", "python", "cmake", "CMakeLists.txt", "pyproject.toml"]
    for top in (ROOT / name for name in tops):
        paths = sorted(top.rglob("*")) if top.is_dir() else [top]
        for path in paths:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(ROOT)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _first_line(argv: list[str]) -> str:
    try:
        return process.run(argv, timeout=30).stdout.splitlines()[0]
    except (BenchError, IndexError):
        return ""


def interpreters(*minor_versions: str) -> list[str]:
    """Interpreters of these versions ("3.13") that are installed, on PATH or by pyenv."""
    found = []
    for version in minor_versions:
        home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        candidates = [
            *sorted(home.glob(f"{version}.*/bin/python3")),
            shutil.which(f"python{version}"),
        ]
        # A pyenv shim answers to every version's name, and then refuses.
        found += [str(path) for path in candidates if path and "shims" not in Path(path).parts][:1]
    return found
