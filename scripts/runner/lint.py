"""The lint stage. Each check counts as one test, and one failure does not hide the next."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import tidy
from console import BUILD, ROOT, StageFailed, run, say
from context import (
    MAIN_VENV,
    MINUTE,
    Context,
    clang_arguments,
    clang_version,
    configure,
    ctest,
    files,
    has_bindings,
    has_core,
)
from results import Results

TIDY_MINUTES = 4.0  # without --full; files that changed last come first


def configure_clang(context: Context) -> Path:
    """The build with clang, whose list of commands clang-tidy reads; with the bindings, if any."""
    arguments = clang_arguments()
    if has_bindings():
        arguments += ["-DRUNLOOM_PYTHON=ON", f"-DPython_EXECUTABLE={context.python.executable}"]
    return configure("clang", arguments)


def lint(context: Context) -> Results:
    results = Results()
    checks: list[Callable[[Context], Results]] = [
        check_format, check_shell, check_ruff, check_types, check_stubs, check_rules, check_tidy,
    ]  # fmt: skip
    for check in checks:
        try:
            results.add(check(context))
        except StageFailed as error:
            say(f"    {error}")
            results.add(Results(failed=1))
    return results


def project_files(*patterns: str) -> list[str]:
    """Files that git knows, or would take, by pattern."""
    command = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
        "--",
        *patterns,
    ]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in output.split("\0") if name and (ROOT / name).is_file())


def one_check(
    title: str, command: list[str], *, log: str, environment: dict[str, str] | None = None
) -> Results:
    run(title, command, log=log, limit=10 * MINUTE, environment=environment)
    return Results(passed=1)


def nothing(title: str, why: str) -> Results:
    say(f"    {title}: nothing to run: {why}")
    return Results()


def check_format(context: Context) -> Results:
    sources = project_files("*.cpp", "*.hpp", "*.c", "*.h")
    if not sources:
        return nothing("clang-format", "no C++ sources")
    # Only version 14: others format differently.
    program = shutil.which("clang-format-14") or str(MAIN_VENV / "bin" / "clang-format")
    return one_check(
        f"clang-format of {len(sources)} files (scripts/format repairs)",
        [program, "--dry-run", "-Werror", *sources],
        log="clang-format",
    )


def check_shell(context: Context) -> Results:
    scripts = ["scripts/setup", "scripts/demo", "scripts/test", "scripts/format", ".ci/run"]
    scripts += project_files("scripts/*.sh")
    return one_check(
        "shellcheck", [str(MAIN_VENV / "bin" / "shellcheck"), "-x", *scripts], log="shellcheck"
    )


def check_ruff(context: Context) -> Results:
    ruff = str(MAIN_VENV / "bin" / "ruff")
    results = one_check("ruff check", [ruff, "check", "."], log="ruff")
    results.add(
        one_check("ruff format", [ruff, "format", "--check", "--diff", "."], log="ruff-format")
    )
    return results


def check_types(context: Context) -> Results:
    mypy = [
        str(MAIN_VENV / "bin" / "python"),
        "-m",
        "mypy",
        "--cache-dir",
        str(BUILD / ".mypy_cache"),
    ]
    folders = ["scripts/runner", "tests/lint", "tests/scripts"]
    folders += [name for name in ("tests/examples",) if files(f"{name}/*.py")]
    results = one_check("mypy of the scripts", [*mypy, *folders], log="mypy-scripts")
    if files("python/runloom/__init__.py"):
        results.add(one_check("mypy of the package", [*mypy, "python/runloom"], log="mypy"))
    else:
        results.add(nothing("mypy of the package", "python/runloom is no package yet"))
    return results


def check_stubs(context: Context) -> Results:
    """Do the stubs say what the modules have? Asks the Python in build/venv."""
    modules = [name for name in ("runloom", "runloom_c") if _has_stub(name)]
    if not has_bindings() or not modules:
        return nothing("stubtest", "no module with stubs")
    return one_check(
        f"stubtest of {' and '.join(modules)}",
        [
            str(MAIN_VENV / "bin" / "python"), "-m", "mypy.stubtest", *modules,
            "--mypy-config-file", "pyproject.toml",
        ],
        log="stubtest",
        environment={**context.python.environment, "MYPYPATH": str(ROOT / "python")},
    )  # fmt: skip


def _has_stub(name: str) -> bool:
    return bool(files(f"python/{name}.pyi", f"python/{name}/**/*.pyi"))


def check_rules(context: Context) -> Results:
    """Include directions and headers alone: compiled with the release, checked by ctest."""
    if not has_core():
        return nothing("include rules", "src/sched has no sources")
    return ctest(context, "release", "running lint", ["-L", "^lint$"], limit=5 * MINUTE)


def check_tidy(context: Context) -> Results:
    if not has_core():
        return nothing("clang-tidy", "src/sched has no sources")
    if clang_version() != "-14":
        return nothing("clang-tidy", "version 14 is not installed, and others have other checks")
    build_directory = configure_clang(context)
    limit = None if context.full else TIDY_MINUTES * MINUTE
    return tidy.check(build_directory, f"clang-tidy{clang_version()}", context.jobs, limit)
