"""What the README and docs/cpp.md say of C++, done with an installed build."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest
from example_process import LIMIT, ROOT, read_exactly

BUILD = Path(os.environ.get("RUNLOOM_BUILD_DIR", ROOT / "build" / "release"))
COMPILE_LIMIT = 240.0  # seconds, on a machine that is busy otherwise
pytestmark = pytest.mark.timeout(2 * COMPILE_LIMIT)
README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs" / "cpp.md").read_text()
# A program of the tour, and what the page says that it prints.
PROGRAMS = re.findall(r"^```cpp\n(.*?)^```\n\nprints\n\n```text\n(.*?)^```$", TOUR, re.M | re.S)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


def command(beginning: str) -> str:
    """The one command of the README that begins so."""
    [line] = re.findall(rf"^    ({re.escape(beginning)}.*)$", README, re.M)
    return str(line)


def output_of(arguments: list[str] | str, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        arguments,
        shell=isinstance(arguments, str),
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMPILE_LIMIT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if re.search(r"^RUNLOOM_SANITIZE:STRING=.+", (BUILD / "CMakeCache.txt").read_text(), re.M):
        pytest.skip("a program without the sanitizer can't be linked with this build")
    folder = tmp_path_factory.mktemp("prefix")
    output_of(["cmake", "--install", str(BUILD), "--prefix", str(folder)], folder)
    return folder


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def server_source(port: int) -> str:
    [program] = blocks(README, "cpp")
    assert program.count("7000") == 1
    return program.replace("7000", str(port))


def echoes(arguments: list[str], port: int, **environment: str) -> None:
    with subprocess.Popen(arguments, env={**os.environ, **environment}) as server:
        try:
            end = time.monotonic() + LIMIT
            while True:
                try:
                    client = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
                    break
                except ConnectionRefusedError:
                    assert server.poll() is None, "it ended"
                    assert time.monotonic() < end, "it does not listen"
                    time.sleep(0.02)
            with client:
                client.sendall(b"hello")
                assert read_exactly(client, 5) == b"hello"
        finally:
            server.terminate()


def test_the_server_of_the_readme_built_with_cmake(prefix: Path, tmp_path: Path, port: int) -> None:
    [lines] = blocks(README, "cmake")
    (tmp_path / "server.cpp").write_text(server_source(port))
    project = "cmake_minimum_required(VERSION 3.25)\nproject(server CXX)\n"
    package, link = lines.splitlines()
    (tmp_path / "CMakeLists.txt").write_text(
        f"{project}{package}\nadd_executable(server server.cpp)\n{link}\n"
    )
    output_of(["cmake", "-B", "build"], tmp_path, CMAKE_PREFIX_PATH=str(prefix))
    output_of(["cmake", "--build", "build"], tmp_path)
    echoes([str(tmp_path / "build" / "server")], port)


def test_the_server_of_the_readme_built_with_pkg_config(
    prefix: Path, tmp_path: Path, port: int
) -> None:
    (tmp_path / "server.cpp").write_text(server_source(port))
    compiled = output_of(
        command("g++ ") + " -Wall -Wextra",
        tmp_path,
        PKG_CONFIG_PATH=str(prefix / "lib" / "pkgconfig"),
    )
    assert compiled == ""
    echoes([str(tmp_path / "a.out")], port, LD_LIBRARY_PATH=str(prefix / "lib"))


def test_the_tour_has_no_programs_that_are_not_run() -> None:
    assert len(PROGRAMS) == len(blocks(TOUR, "cpp")) == len(blocks(TOUR, "text"))


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_tour_prints_what_it_says(prefix: Path, tmp_path: Path, number: int) -> None:
    program, output = PROGRAMS[number]
    (tmp_path / "server.cpp").write_text(program)
    compiled = output_of(
        command("g++ ") + " -Wall -Wextra -Wshadow",
        tmp_path,
        PKG_CONFIG_PATH=str(prefix / "lib" / "pkgconfig"),
    )
    assert compiled == ""
    for hubs in ("1", "2"):
        libraries = str(prefix / "lib")
        printed = output_of("./a.out", tmp_path, LD_LIBRARY_PATH=libraries, RUNLOOM_HUBS=hubs)
        assert printed == output


def test_the_presets_of_the_readme_exist() -> None:
    presets = output_of(["cmake", "--list-presets"], ROOT)
    for name in re.findall(r"cmake --preset (\w+)", README):
        assert f'"{name}"' in presets
