"""Which file may include what: the rules, and a checker that reads the includes.

    python3 tests/lint/include_rules.py [ROOT]

prints one line for each forbidden include and exits with 1 if there was any.

Dependencies run one way, sched <- net <- {tls, dns} <- python. Each third-party library has one
home, so that replacing it, or reading all that depends on it, is a matter of one file; public
headers include none of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A layer may include the public headers of itself and of these.
LAYER_MAY_USE = {
    "sched": set(),
    "net": {"sched"},
    "tls": {"sched", "net"},
    "dns": {"sched", "net"},
}


@dataclass(frozen=True)
class Home:
    """A third-party library: how its headers are named, and which files alone may include them."""

    library: str
    header: re.Pattern[str]
    files: re.Pattern[str]


HOMES = [
    Home("Boost", re.compile(r"boost/"), re.compile(r"src/sched/context\w*\.[ch]pp")),
    Home(
        "liburing",
        re.compile(r"liburing"),
        re.compile(r"(src/net|tests/support)/\w*uring\w*\.[ch]pp"),
    ),
    Home("OpenSSL", re.compile(r"openssl/"), re.compile(r"src/tls/\w+\.[ch]pp|tests/support/.*")),
    Home("c-ares", re.compile(r"ares(_\w+)?\.h"), re.compile(r"src/dns/\w+\.[ch]pp")),
    Home(
        "CPython's internals",
        re.compile(r"internal/pycore_|pycore_|cpython/"),
        re.compile(r"python/bindings/pystate\.c|tests/python/pystate_selftest/.*"),
    ),
    Home("CPython", re.compile(r"Python\.h"), re.compile(r"python/bindings/.*|tests/python/.*")),
    Home("pybind11", re.compile(r"pybind11/"), re.compile(r"python/bindings/.*\.[ch]pp")),
    Home(
        "GoogleTest",
        re.compile(r"g(test|mock)/"),
        re.compile(r"tests/.*|src/\w+/\w+_test\.cpp"),
    ),
    Home("Google Benchmark", re.compile(r"benchmark/"), re.compile(r"src/\w+/\w+_benchmark\.cpp")),
]

# The kernel's multiplexers are no third-party libraries, but each has one home for the same reason.
KERNEL_HOMES = [
    Home("epoll", re.compile(r"sys/epoll\.h"), re.compile(r"src/net/\w*epoll\w*\.[ch]pp")),
    Home("io_uring", re.compile(r"linux/io_uring\.h"), re.compile(r"src/net/\w*uring\w*\.[ch]pp")),
]

# What we are measured against is built on other libraries.
FREE = re.compile(r"bench/.*")
# Tests, benches and examples of foreign descriptors may talk to the kernel directly.
KERNEL_FREE = re.compile(r"(tests|bench|examples)/.*")

SOURCE_SUFFIXES = {".c", ".h", ".cpp", ".hpp"}
SOURCE_DIRS = ("src", "python", "tests", "bench", "examples")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, opening delimiter and name of each include."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1], match[2]


def sources(root: Path) -> Iterator[str]:
    for directory in SOURCE_DIRS:
        for path in sorted((root / directory).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                yield path.relative_to(root).as_posix()


def layer_of_file(path: str) -> str | None:
    parts = path.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 else None


def layer_of_header(path: str, name: str, delimiter: str, root: Path) -> str | None:
    """The layer that an included header belongs to, or None for a header that isn't ours."""
    if name.startswith("runloom/"):
        return name.split("/")[1]
    # A private header, by a relative path or from src/: "../sched/hub.hpp", "sched/hub.hpp".
    if delimiter == '"':
        resolved = ((root / path).parent / name).resolve()
        if resolved.is_relative_to(root.resolve()):
            layer = layer_of_file(resolved.relative_to(root.resolve()).as_posix())
            if layer and (resolved.exists() or name.startswith("../")):
                return layer
        # The bindings have folders named after the layers that they bind.
        if path.startswith("python/bindings/") and (root / "python/bindings" / name).exists():
            return None
        head = name.split("/")[0]
        if head in LAYER_MAY_USE and "/" in name:
            return head
    return None


def is_public(name: str) -> bool:
    return name.startswith("runloom/")


def check_file(root: Path, path: str) -> Iterator[str]:
    text = (root / path).read_text(encoding="utf-8", errors="replace")
    own_layer = layer_of_file(path)
    public_header = re.match(r"src/\w+/include/", path) is not None
    for number, delimiter, name in includes(text):
        where = f"{path}:{number}"
        layer = layer_of_header(path, name, delimiter, root)
        if layer is not None:
            if own_layer is not None and layer != own_layer:
                allowed = LAYER_MAY_USE.get(own_layer)
                if allowed is None:
                    yield f"{where}: layer {own_layer} has no rule; add it to LAYER_MAY_USE"
                elif layer not in allowed:
                    yield f"{where}: {own_layer} must not depend on {layer} ({name})"
                elif not is_public(name):
                    yield f"{where}: {name} is private to {layer}; include its public headers only"
            if public_header and not is_public(name):
                yield f"{where}: a public header includes {name}, which is not installed"
            if path.startswith(("python/", "examples/")) and not is_public(name):
                yield f"{where}: {name} is private to {layer}; include its public headers only"
            continue
        yield from check_third_party(path, where, name, public_header)


def check_third_party(path: str, where: str, name: str, public_header: bool) -> Iterator[str]:
    homes = list(HOMES)
    if not KERNEL_FREE.fullmatch(path):
        homes += KERNEL_HOMES
    for home in homes:
        if not home.header.match(name):
            continue
        if public_header:
            yield f"{where}: a public header includes {home.library} ({name})"
        elif not home.files.fullmatch(path) and not FREE.fullmatch(path):
            yield f"{where}: {home.library} ({name}) may be included only in {home.files.pattern}"
        return  # the first home that knows the header decides


def check_tree(root: Path) -> tuple[int, list[str]]:
    """The number of files read, and what is wrong with them."""
    paths = list(sources(root))
    return len(paths), [problem for path in paths for problem in check_file(root, path)]


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    count, problems = check_tree(root)
    for problem in problems:
        print(problem)
    if count == 0:
        print(f"{root} holds no sources to check")
        return 1
    print(f"{count} files read, {len(problems)} forbidden includes")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
