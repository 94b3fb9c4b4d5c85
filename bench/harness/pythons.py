"""The environments of the Python subjects: ours with the peers, and the published package's.

The subjects run under one interpreter. The published package of the same name (0.2.0) needs one
that it builds on, which may be another: the notes say which.
"""

from __future__ import annotations

from pathlib import Path

from harness.build import interpreters
from harness.registry import Context

PUBLISHED = "runloom==0.2.0"


class Pythons:
    def __init__(self, context: Context):
        builder = context.builder
        self.peers = builder.environment("venv", ["gevent", "greenlet", "uvloop"])
        self.why_not_ours = builder.install_runloom(self.peers)
        self.published = builder.environment("venv-published", [PUBLISHED])
        for interpreter in interpreters("3.13", "3.12"):
            if not self.published.missing:
                break
            version = Path(interpreter).resolve().name.removeprefix("python")
            other = builder.environment(f"venv-published-{version}", [PUBLISHED], interpreter)
            if not other.missing:
                self.published = other

    def notes(self) -> list[str]:
        return [
            ", ".join(f"{name} {version}" for name, version in environment.versions.items())
            for environment in (self.peers, self.published)
            if not environment.missing or environment is self.peers
        ]
