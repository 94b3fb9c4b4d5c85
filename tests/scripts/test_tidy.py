"""clang-tidy runs again when a header changed that the source includes, through others too."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidy


def test_headers_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    public = tmp_path / "src/sched/include/runloom/sched"
    public.mkdir(parents=True)
    (public / "fiber.hpp").write_text("#include <vector>\n")
    (tmp_path / "src/sched/hub.hpp").write_text('#include "runloom/sched/fiber.hpp"\n')
    (tmp_path / "src/sched/other.hpp").write_text("")
    source = tmp_path / "src/sched/hub.cpp"
    source.write_text('#include "hub.hpp"\n')
    used = {path.relative_to(tmp_path).as_posix() for path in tidy.used_files(source)}
    expected = {"src/sched/hub.cpp", "src/sched/hub.hpp"}
    assert used == expected | {"src/sched/include/runloom/sched/fiber.hpp"}
