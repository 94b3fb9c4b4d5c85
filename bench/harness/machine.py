"""The machine: what it is, which cores are used for what, and how undisturbed it is."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

from harness import process
from harness.model import BenchError


def describe() -> str:
    """One line that tells machines apart: figures are comparable only where it is equal."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    parts = [
        model.group(1).strip() if model else platform.machine(),
        f"{os.cpu_count()} CPUs",
        f"{platform.system()} {platform.release()}",
    ]
    if control.exists():
        parts.append(f"tcp {control.read_text().strip()}")
    return ", ".join(parts)


@dataclass(frozen=True)
class Cores:
    """The server is pinned to one core and the load generator to another."""

    server: int
    client: int

    @staticmethod
    def choose() -> Cores:
        allowed = sorted(os.sched_getaffinity(0))
        return Cores(allowed[0], allowed[min(1, len(allowed) - 1)])

    @property
    def shared(self) -> bool:
        return self.server == self.client

    @property
    def both(self) -> tuple[int, ...]:
        return (self.server,) if self.shared else (self.server, self.client)


def busy_seconds() -> float:
    """Seconds that all cores have been busy since boot; time stolen by the hypervisor counts."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    idle, iowait = ticks[3], ticks[4]
    return (sum(ticks) - idle - iowait) / os.sysconf("SC_CLK_TCK")


@dataclass
class Probe:
    """Tells how slow the cores are now against the best that was seen: 1.0 is their best.

    On a virtual machine a system call costs a third more while a neighbour uses the physical core.
    Without the probe program the answer is always 1.0.
    """

    program: Path | None
    cores: Cores
    _best: dict[int, float] = field(default_factory=dict)

    def slowness(self) -> float:
        if self.program is None:
            return 1.0
        try:
            done = process.run(
                [self.program, *map(str, self.cores.both)], timeout=10, cpus=self.cores.both
            )
        except BenchError:
            return 1.0
        worst = 1.0
        for cpu, word in zip(self.cores.both, done.stdout.split(), strict=False):
            now = float(word)
            self._best[cpu] = min(now, self._best.get(cpu, now))
            worst = max(worst, now / self._best[cpu])
        return worst
