"""The stages of scripts/test, in the order in which they run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lint
from console import BUILD, ROOT, StageFailed, run, say
from context import (
    BUILD_ENVIRONMENT,
    MAIN_VENV,
    MINUTE,
    SUPPORTED_PYTHONS,
    Context,
    Python,
    build,
    clang_arguments,
    configure,
    ctest,
    files,
    has_bindings,
    has_core,
    pytest,
    requirements,
)
from results import Results

# For programs that ctest does not start, which sets the same itself.
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
}
PREFIX = BUILD / "release" / "prefix"


class NothingToRun(Exception):
    """The stage has no sources yet, which is neither passed nor failed. The text says which."""


@dataclass(frozen=True)
class Stage:
    name: str
    does: str
    budget: float  # minutes, cold, on two cores
    run: Callable[[Context], Results]
    needs: tuple[str, ...] = ()  # run before it; when one of them fails, this one is not run
    uses: tuple[str, ...] = ()  # run before it, but it can do without
    on_request: bool = False  # only with --full, or when it is named


def require(sources: object, what: str) -> None:
    if not sources:
        raise NothingToRun(what)


def tools(context: Context) -> Results:
    """What needs no build of runloom: the scripts and the bench harness."""
    folders = [f"tests/{name}" for name in ("scripts", "bench") if files(f"tests/{name}/test_*.py")]
    require(folders, "tests/scripts and tests/bench have no tests")
    return pytest(
        context.tool_python, "testing the scripts", folders, limit=5 * MINUTE, log="tools"
    )


def core(context: Context) -> Results:
    require(has_core(), "src/sched has no sources")
    directory = configure("release")
    build(context, directory)
    run(
        "installing into build/release/prefix",
        ["cmake", "--install", directory, "--prefix", PREFIX],
        log="release-install",
        limit=2 * MINUTE,
    )
    return Results()


def extensions(context: Context) -> Results:
    require(has_bindings(), "python/bindings has no sources")
    missing = [v for v in SUPPORTED_PYTHONS if v not in {p.version for p in context.pythons}]
    if missing and not context.only_python:
        say(f"    not found, so not tested: Python {', '.join(missing)}")
    for python in context.pythons:
        make_venv(python)
        build_extension(context, python)
    return Results()


def make_venv(python: Python) -> None:
    """A virtual environment for one more Python, with what its tests need."""
    if python.venv == MAIN_VENV:
        return  # made by scripts/setup
    needed = [*requirements("test"), *(r for r in requirements("dev") if r.startswith("pybind11"))]
    wanted = "\n".join([str(python.path), *needed])
    stamp = python.venv / ".requirements"
    if stamp.exists() and stamp.read_text() == wanted and python.executable.exists():
        return
    run(
        f"making a virtual environment for Python {python.version}",
        [python.path, "-m", "venv", "--clear", python.venv],
        log=f"venv-{python.version}",
        limit=3 * MINUTE,
    )
    pip: list[str | Path] = [
        python.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
    ]
    run(
        f"installing pytest and pybind11 for Python {python.version}",
        [*pip, *needed],
        log=f"venv-{python.version}",
        limit=10 * MINUTE,
    )
    stamp.write_text(wanted)


def build_extension(context: Context, python: Python) -> None:
    """Only the bindings are compiled; the core is the one that the stage `core` installed."""
    run(
        f"configuring the module for Python {python.version}",
        [
            "cmake", "-S", ROOT, "-B", python.extension, "-G", "Ninja",
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DRUNLOOM_WERROR=ON",
            "-DRUNLOOM_USE_INSTALLED_CORE=ON", f"-Drunloom_DIR={PREFIX}/lib/cmake/runloom",
            f"-DPython_EXECUTABLE={python.executable}",
        ],
        log=f"ext-{python.version}-configure",
        limit=5 * MINUTE,
        environment=BUILD_ENVIRONMENT,
    )  # fmt: skip
    build(context, python.extension)


def cpp(context: Context) -> Results:
    require(has_core(), "src/sched has no sources")
    others = "^(stress|lint|fuzz)$"
    # With --full there are more clients.
    more = {"RUNLOOM_FULL": "1"} if context.full else None
    results = ctest(
        context, "release", "running C++ tests", ["-LE", others],
        limit=20 * MINUTE, environment=more,
    )  # fmt: skip
    results.add(cpp_examples(context, "release"))
    return results


def cpp_examples(context: Context, preset: str) -> Results:
    """The programs of examples/cpp, as a build made them, under clients in Python."""
    if not files("tests/examples/test_*.py"):
        say("    C++ examples: nothing to run: tests/examples has no tests")
        return Results()
    return pytest(
        context.tool_python,
        f"running C++ examples of {preset}",
        ["tests/examples"],
        limit=10 * MINUTE,
        log=f"{preset}-examples",
        environment={**SANITIZER_OPTIONS, "RUNLOOM_BUILD_DIR": str(BUILD / preset)},
    )


def asan(context: Context) -> Results:
    require(has_core(), "src/sched has no sources")
    build(context, configure("asan"))
    others = "^(stress|lint|consumer)$"
    results = ctest(
        context, "asan", "running C++ tests under asan", ["-LE", others], limit=30 * MINUTE
    )
    results.add(cpp_examples(context, "asan"))
    return results


def tsan(context: Context) -> Results:
    require(has_core(), "src/sched has no sources")
    build(context, configure("tsan"))
    # Tests that race with each other for the cores would find fewer races in themselves.
    return ctest(
        context, "tsan", "running race tests under tsan", ["-L", "^race$"],
        limit=30 * MINUTE, serial=True,
    )  # fmt: skip


def python_tests(context: Context) -> Results:
    require(has_bindings(), "python/bindings has no sources")
    require(files("tests/python/**/test_*.py"), "tests/python has no tests")
    results = Results()
    for python in context.pythons:
        whole = context.full or python == context.python
        title = (
            f"running {'all' if whole else 'version-sensitive'} tests on Python {python.version}"
        )
        chosen = [] if whole else ["-m", "version_sensitive"]
        results.add(pytest(python, title, ["tests/python", *chosen], limit=25 * MINUTE))
        results.add(cpython_tests(context, python))
        if whole:
            results.add(
                pytest(
                    python,
                    f"running them on Python {python.version} with io_uring",
                    ["tests/python", "-k", "not test_docs"],
                    limit=25 * MINUTE,
                    environment={"RUNLOOM_NETPOLL": "io_uring"},
                    log="pytest-io_uring",
                )
            )
    return results


def soak(context: Context) -> Results:
    """Half an hour of real clients, beside a server of each kind."""
    require(files("tests/python/test_soak.py"), "there is no soak test")
    return pytest(
        context.python,
        "half an hour of servers under real clients",
        ["tests/python/test_soak.py", "-o", "faulthandler_timeout=2700"],
        limit=45 * MINUTE,
        log="soak",
        environment={"RUNLOOM_SOAK_SECONDS": "1800"},
    )


def python_asan(context: Context) -> Results:
    """The Python tests with a module, core included, that the sanitizers watch.

    The interpreter itself is an ordinary one, so the sanitizers' library is loaded ahead of it, and
    its own allocator, which would hide what is freed, gives way to malloc.
    """
    require(has_bindings(), "python/bindings has no sources")
    python = context.python
    directory = configure("asan-python", [f"-DPython_EXECUTABLE={python.executable}"])
    build(context, directory, ["runloom_c"])
    preload = " ".join(map(runtime_library, ("libasan.so", "libstdc++.so")))
    # What tests start as sys.executable: other programs go without the library.
    wrapper = directory / "interpreter"
    wrapper.write_text(f'#!/bin/sh\nLD_PRELOAD="{preload}" exec "{python.executable}" "$@"\n')
    wrapper.chmod(0o755)
    return pytest(
        python,
        f"running the Python tests under asan on Python {python.version}",
        # What takes a second may take a minute.
        ["tests/python", "--timeout", "400", "-o", "faulthandler_timeout=380",
         "-k", "not test_examples and not test_docs and not test_demo"],
        limit=60 * MINUTE,
        log="asan-python",
        environment={
            **SANITIZER_OPTIONS,
            # What an interpreter has at its end is no leak; what is too large is a MemoryError. The
            # interpreter has no frame pointers: a stack of each allocation would be another one
            # almost every time, and all are kept.
            "ASAN_OPTIONS": f"{SANITIZER_OPTIONS['ASAN_OPTIONS']}:detect_leaks=0"
            ":allocator_may_return_null=1:malloc_context_size=1",
            "LD_PRELOAD": preload,
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": f"{directory / 'lib'}:{ROOT / 'python'}",
            "RUNLOOM_SANITIZED": str(wrapper),
        },
    )  # fmt: skip


def runtime_library(name: str) -> str:
    """Where the compiler of the presets has a library of its own."""
    output = subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    if not Path(output).is_absolute():
        raise StageFailed(f"gcc has no {name}")
    return output


def cpython_tests(context: Context, python: Python) -> Results:
    """CPython's own tests on fibers: what a switch exchanges, with --full everything listed."""
    how_many = "more" if context.full else "some"
    return pytest(
        python,
        f"running {how_many} of CPython {python.version}'s tests on fibers",
        ["tests/cpython"],
        limit=30 * MINUTE,
        log="cpython",
        environment={"RUNLOOM_FULL": "1"} if context.full else None,
    )


def wheel(context: Context) -> Results:
    """What a user does: pip builds it in isolation, and another directory imports it."""
    require(has_bindings(), "python/bindings has no sources")
    require(files("python/runloom/__init__.py"), "python/runloom is no package yet")
    venv = BUILD / "wheel-venv"
    run(
        f"making a virtual environment for Python {context.python.version}",
        [context.python.path, "-m", "venv", "--clear", venv],
        log="wheel",
        limit=3 * MINUTE,
    )
    run(
        "pip install .",
        [
            venv / "bin" / "python",
            "-m",
            "pip",
            "install",
            "-v",
            "--disable-pip-version-check",
            ROOT,
        ],
        log="wheel",
        limit=30 * MINUTE,
        environment=BUILD_ENVIRONMENT,
    )
    run(
        "importing it",
        [
            venv / "bin" / "python",
            "-I",
            "-c",
            "import runloom, runloom_c; print(runloom_c.__file__)",
        ],
        log="wheel-import",
        limit=MINUTE,
        directory=venv,
    )
    return Results(passed=1)


def clang(context: Context) -> Results:
    require(has_core(), "src/sched has no sources")
    build(context, lint.configure_clang(context))
    return Results()


def fuzz(context: Context) -> Results:
    require(files("tests/fuzz/*_fuzz.cpp") if has_core() else [], "tests/fuzz has no targets")
    # With --full each target also searches for new inputs for a minute.
    search = "ON" if context.full else "OFF"
    directory = configure("fuzz", [*clang_arguments(), f"-DRUNLOOM_FUZZ_SEARCH={search}"])
    build(context, directory)
    return ctest(context, "fuzz", "replaying fuzz corpora", ["-L", "^fuzz$"], limit=30 * MINUTE)


def stress(context: Context) -> Results:
    require(files("tests/stress/*.cpp") if has_core() else [], "tests/stress has no tests")
    # With --full there are more fibers, and ten minutes of cut connections instead of one.
    longer = {"RUNLOOM_FULL": "1", "RUNLOOM_STRESS_SECONDS": "600"} if context.full else None
    return ctest(
        context, "release", "running stress tests", ["-L", "^stress$"],
        limit=30 * MINUTE, serial=True, environment=longer,
    )  # fmt: skip


STAGES = [
    Stage("tools", "tests of the scripts and of the bench harness", 2, tools),
    Stage(
        "core", "build the C++ libraries, tests, examples and benches once, as a release", 10, core
    ),
    Stage("extensions", "build the Python module for each Python", 5, extensions, ("core",)),
    Stage("cpp", "C++ tests, examples, and a consumer of the install tree", 5, cpp, ("core",)),
    Stage("python", "Python tests", 8, python_tests, ("extensions",)),
    Stage("asan", "C++ tests under the address and undefined-behaviour sanitizers", 12, asan),
    Stage(
        "python-asan",
        "Python tests under the sanitizers; only with --full or by name",
        40,
        python_asan,
        ("extensions",),
        on_request=True,
    ),
    Stage(
        "soak",
        "half an hour of servers under real clients; only with --full or by name",
        45,
        soak,
        ("extensions",),
        on_request=True,
    ),
    Stage("tsan", "race tests under the thread sanitizer", 10, tsan),
    Stage("clang", "compile everything with clang", 6, clang),
    Stage(
        "lint", "format, include rules, types, static analysis", 5, lint.lint, uses=("extensions",)
    ),
    Stage("fuzz", "replay the corpora of the fuzz targets", 3, fuzz),
    Stage("stress", "stress tests and the simulator, with fixed seeds", 4, stress, ("core",)),
    Stage("wheel", "pip install . and import", 3, wheel),
]


def usual(full: bool) -> list[Stage]:
    """What is run when no stage is named."""
    return [stage for stage in STAGES if full or not stage.on_request]


def with_needs(names: list[str]) -> list[Stage]:
    """The named stages and all that they build on, in order."""
    by_name = {stage.name: stage for stage in STAGES}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise StageFailed(f"there is no stage {unknown[0]}; the stages are: {', '.join(by_name)}")
    chosen = set(names)
    while True:
        more = {
            need for name in chosen for need in by_name[name].needs + by_name[name].uses
        } - chosen
        if not more:
            return [stage for stage in STAGES if stage.name in chosen]
        chosen |= more
