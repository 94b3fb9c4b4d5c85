"""clang-tidy over the compiled sources.

A file is checked again only when it, a header of ours that it includes, its command or the
configuration has changed. Without --full there is a limit in time; then the files that were changed
last come first, and what was left out is said.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from console import BUILD, LOGS, ROOT, duration, say
from results import Results

STAMPS = BUILD / "tidy"
CHECKED = ("src/", "python/bindings/", "tests/", "bench/micro/", "bench/net/", "examples/")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# Inside clang-tidy 14 __has_builtin does not know the atomic builtins, and Python.h then gives up.
EXTRA = ["--extra-arg=-D_Py_USE_GCC_BUILTIN_ATOMICS=1"]


@dataclass(frozen=True)
class Unit:
    path: str  # relative to the root
    key: str


def check(build_directory: Path, program: str, jobs: int, limit: float | None) -> Results:
    units = find_units(build_directory)
    todo = [unit for unit in units if not (STAMPS / unit.key).exists()]
    order = last_changed()
    todo.sort(key=lambda unit: order.get(unit.path, len(order)))

    start = time.monotonic()
    STAMPS.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    output: list[str] = []
    failed: list[str] = []
    done = 0

    def one(unit: Unit) -> tuple[Unit, subprocess.CompletedProcess[str]] | None:
        if limit is not None and time.monotonic() - start > limit:
            return None
        command = [program, "--quiet", "-p", str(build_directory), *EXTRA, str(ROOT / unit.path)]
        return unit, subprocess.run(command, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(one, unit) for unit in todo]):
            result = future.result()
            if result is None:
                continue
            unit, process = result
            done += 1
            if process.returncode == 0:
                (STAMPS / unit.key).touch()
            else:
                failed.append(unit.path)
                output.append(process.stdout.strip() or process.stderr.strip())
    (LOGS / "clang-tidy.log").write_text("\n".join(output) + "\n")

    for text in output:
        say("\n".join(f"    | {line}" for line in text.splitlines()))
    left = len(todo) - done
    say(
        f"    clang-tidy: {done} files checked, {len(units) - len(todo)} unchanged since clean"
        + (f", {left} left for another run, or --full" if left else "")
        + f" ... {duration(time.monotonic() - start)}"
    )
    if failed:
        say(f"    clang-tidy found mistakes in {', '.join(sorted(failed))}")
    return Results(failed=1) if failed else Results(passed=1)


def find_units(build_directory: Path) -> list[Unit]:
    commands = json.loads((build_directory / "compile_commands.json").read_text())
    configuration = b"".join(
        (ROOT / folder / ".clang-tidy").read_bytes() for folder in (".", "tests")
    )
    digests: dict[Path, str] = {}
    units = []
    for entry in commands:
        path = Path(entry["directory"], entry["file"])
        if not path.is_relative_to(ROOT):
            continue
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(CHECKED) or path.suffix != ".cpp":
            continue
        text = hashlib.sha256(configuration)
        text.update(entry["command"].encode())
        for used in sorted(used_files(path)):
            if used not in digests:
                digests[used] = hashlib.sha256(used.read_bytes()).hexdigest()
            text.update(f"{used} {digests[used]}\n".encode())
        units.append(Unit(name, text.hexdigest()))
    return units


def used_files(path: Path) -> set[Path]:
    """The file and the headers of ours that it includes, directly or through others.

    A name is looked for beside the file, in the public include folders and in the roots of private
    headers; a header found in two places is taken from both, which can only cause one check too
    many.
    """
    seen: set[Path] = set()
    waiting = [path]
    roots = [*ROOT.glob("src/*/include"), *ROOT.glob("src/*"), ROOT / "src", ROOT / "tests"]
    roots += [ROOT / "python" / "bindings", ROOT / "bench"]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for name in INCLUDE.findall(current.read_text(errors="replace")):
            for root in [current.parent, *roots]:
                candidate = root / name
                if candidate.is_file():
                    waiting.append(candidate.resolve())
    return seen


def last_changed() -> dict[str, int]:
    """Rank of each file: uncommitted changes first, then by the last commit that touched it."""
    names = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    names += _git("log", "--name-only", "--format=", "-n", "300")
    ranks: dict[str, int] = {}
    for name in names:
        ranks.setdefault(name, len(ranks))
    return ranks


def _git(*arguments: str) -> list[str]:
    process = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return [line for line in process.stdout.splitlines() if line]
