"""What the stages share: the options of this run, the interpreters, and how a CMake preset is built
and tested."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from console import BUILD, LOGS, ROOT, StageFailed, run, say, show_tail
from results import Results, read_junit

MINUTE = 60.0
# What a build may take: a cold one on two slow cores. Far above the budget, it only ends a hang.
BUILD_LIMIT = 40 * MINUTE
SUPPORTED_PYTHONS = ("3.11", "3.12", "3.13")
MAIN_VENV = BUILD / "venv"


@dataclass(frozen=True)
class Python:
    """An interpreter, and the places where what belongs to it is built."""

    version: str  # "3.12"
    path: Path

    @property
    def venv(self) -> Path:
        """build/venv where that is of this version, else one beside it."""
        return MAIN_VENV if self.version == main_version() else BUILD / f"venv-{self.version}"

    @property
    def executable(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def extension(self) -> Path:
        return BUILD / f"ext-{self.version}"

    @property
    def environment(self) -> dict[str, str]:
        """For tests: the module from its build directory, the package from the source tree."""
        return {
            "PYTHONPATH": f"{self.extension / 'lib'}:{ROOT / 'python'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "RUNLOOM_BUILD_DIR": str(BUILD / "release"),
        }


@dataclass
class Context:
    full: bool = False
    only_python: str | None = None
    pythons: list[Python] = field(default_factory=list)  # newest first
    jobs: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    @property
    def python(self) -> Python:
        """The one on which everything is tested."""
        return self.pythons[0]

    @property
    def tool_python(self) -> Python:
        """The one in build/venv, for tests that need no module of ours."""
        return Python(main_version(), MAIN_VENV / "bin" / "python")


@cache
def main_version() -> str:
    """The version of the interpreter in build/venv, which scripts/setup made."""
    for line in (MAIN_VENV / "pyvenv.cfg").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "version":
            return ".".join(value.strip().split(".")[:2])
    raise StageFailed("build/venv is broken; remove it, and run scripts/setup")


def requirements(*extras: str) -> list[str]:
    """What pyproject.toml lists under these names of its optional dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [line for extra in extras for line in project["optional-dependencies"][extra]]


def find_pythons(only: str | None) -> list[Python]:
    script = "source scripts/lib/pythons.sh; find_all_pythons"
    output = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    found = [line.split(maxsplit=1) for line in output.splitlines()]
    return [Python(version, Path(path)) for version, path in found if only in (None, version)]


def files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def has_core() -> bool:
    return bool(files("src/sched/*.cpp"))


def has_bindings() -> bool:
    return has_core() and bool(files("python/bindings/**/*.cpp"))


def clang_version() -> str:
    """The suffix of clang's commands: -14 where that version is installed, else none."""
    for suffix in ("-14", ""):
        if shutil.which(f"clang++{suffix}") and shutil.which(f"clang-tidy{suffix}"):
            return suffix
    raise StageFailed("clang++ and clang-tidy were not found; run scripts/setup")


def clang_arguments() -> list[str]:
    suffix = clang_version()
    return [f"-DCMAKE_C_COMPILER=clang{suffix}", f"-DCMAKE_CXX_COMPILER=clang++{suffix}"]


# Compiling in another build directory must still find what ccache has; debug information that names
# the directory is not worth a second compilation.
BUILD_ENVIRONMENT = {"CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(ROOT)}


def configure(preset: str, arguments: Sequence[str] = ()) -> Path:
    directory = BUILD / preset
    run(
        f"configuring {preset}",
        ["cmake", "--preset", preset, *arguments],
        log=f"{preset}-configure",
        limit=5 * MINUTE,
        environment=BUILD_ENVIRONMENT,
    )
    return directory


def build(context: Context, directory: Path, targets: Sequence[str] = ()) -> None:
    chosen = ["--target", *targets] if targets else []
    run(
        f"building {' '.join(targets) or directory.name}",
        ["cmake", "--build", directory, "--parallel", str(context.jobs), *chosen],
        log=f"{directory.name}-build",
        limit=BUILD_LIMIT,
        environment=BUILD_ENVIRONMENT,
    )


def ctest(
    context: Context,
    preset: str,
    title: str,
    selection: Sequence[str],
    *,
    limit: float,
    serial: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Results:
    """Runs the chosen tests of a build directory."""
    directory = BUILD / preset
    report = directory / "ctest.xml"
    report.unlink(missing_ok=True)
    status = run(
        title,
        [
            "ctest", "--output-on-failure", "--output-junit", report, *selection,
            "--parallel", "1" if serial else str(context.jobs),
        ],
        log=f"{preset}-{title.split()[-1]}-tests",
        limit=limit,
        directory=directory,
        environment=environment,
        ok=(0, 8),  # 8: some test failed, which the report tells in detail
    )  # fmt: skip
    return _collect(report, status, title)


def pytest(
    python: Python,
    title: str,
    arguments: Sequence[str],
    *,
    limit: float,
    log: str = "pytest",
    environment: Mapping[str, str] | None = None,
) -> Results:
    """Runs pytest under an interpreter, with the extension that was built for it."""
    log = f"{log}-{python.version}"
    report = BUILD / f"{log}.xml"
    report.unlink(missing_ok=True)
    status = run(
        title,
        [
            python.executable, "-X", "faulthandler", "-m", "pytest", "-q",
            "-o", f"cache_dir={BUILD}/.{log}-cache", f"--junit-xml={report}", *arguments,
        ],
        log=log,
        limit=limit,
        environment={**python.environment, **(environment or {})},
        ok=(0, 1, 5),  # 1: some test failed; 5: none was chosen
    )  # fmt: skip
    if not report.exists():
        # pytest-timeout ends the process of a test that hangs, as does a crash.
        show_tail(LOGS / f"{log}.log")
        raise StageFailed(
            f"pytest under Python {python.version} ended before it could report: a test hung or "
            f"crashed. The end of build/logs/{log}.log names it."
        )
    return _collect(report, 0 if status == 5 else status, title)


def _collect(report: Path, status: int, title: str) -> Results:
    results = read_junit(report)
    for failure in results.failures:
        say(f"    FAILED {failure}")
    if status != 0 and results.failed == 0:
        raise StageFailed(
            f"`{title}` failed with status {status}, though no test did; see build/logs"
        )
    return results
