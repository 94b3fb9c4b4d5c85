"""Files: random 4 KiB reads of cached data, against plain pread(2) and a one-thread pool"""

import tempfile
from pathlib import Path

from harness import lines
from harness.model import Group, Metric, Plan, Subject, missing
from harness.registry import Context

NS = Metric("ns")


def plan(context: Context) -> Plan:
    # On the file system that programs have their files on; one that is memory would be no test.
    directory = tempfile.TemporaryDirectory(prefix="runloom-bench-", dir="/var/tmp")
    cpus = context.cores.both

    def subject(name: str, program: str, *arguments: str, ours: bool = False) -> Subject:
        path = context.builder.program(program)
        if path is None:
            return missing(name, f"{program} is not built: see what CMake says of it", ours)
        # The directory lives as long as what refers to it.
        return Subject(
            name,
            lambda: lines.measure([path, *arguments, Path(directory.name) / "data"], cpus),
            ours,
        )

    group = Group(
        "CPU time of a 4 KiB random read, cached",
        [
            subject("pread", "files_threads", "pread"),
            subject("runloom", "files_runloom", ours=True),
            subject("one-thread pool", "files_threads", "pool"),
        ],
        [NS],
        seconds=2.0,
    )
    return Plan([group], [context.builder.versions])
