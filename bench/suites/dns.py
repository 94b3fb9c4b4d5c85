"""Names: 32 lookups at a time at a local server, against glibc's getaddrinfo in 32 threads"""

from harness import lines
from harness.model import Group, Metric, Plan, Subject, missing
from harness.registry import Context

METRICS = [Metric("CPU ns"), Metric("names/s", higher_is_better=True)]


def plan(context: Context) -> Plan:
    cpus = context.cores.both

    def subject(name: str, program: str, ours: bool = False, **env: str) -> Subject:
        path = context.builder.program(program)
        if path is None:
            return missing(name, f"{program} is not built: see what CMake says of it", ours)
        return Subject(name, lambda: lines.measure([path], cpus, env), ours)

    group = Group(
        "names",
        [
            subject("getaddrinfo, 32 threads", "names_threads"),
            subject("runloom", "names_runloom", ours=True),
            subject("runloom on io_uring", "names_runloom", ours=True, RUNLOOM_NETPOLL="io_uring"),
        ],
        METRICS,
        # Numbers are to cost less than a microsecond.
        {("numeric name", "CPU ns"): 1000},
        seconds=8.0,
    )
    return Plan([group], [context.builder.versions])
