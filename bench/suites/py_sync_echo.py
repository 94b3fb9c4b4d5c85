"""runloom.sync echo against raw epoll, gevent, asyncio, uvloop; Python costs against greenlet

The Python subjects run under one interpreter. The published package of the same name (0.2.0) needs
one that it builds on, which may be another: the notes say which.
"""

import functools
from pathlib import Path

from harness import lines
from harness.build import BENCH, Environment, interpreters
from harness.echo import METRICS, Load, LoadGenerator, ServerSpec
from harness.model import BenchError, Group, Metric, Plan, Subject, Values
from harness.registry import Context

PUBLISHED = "runloom==0.2.0"
LOADS = [
    Load("64 B x 64 connections", 64),
    Load("64 B x 1000 connections", 1000),
    Load("64 B x 1 connection", 1, busy=True),
    Load("16 KiB x 64 connections", 64, size=16 * 1024),
    Load("16 KiB x 1 connection", 1, size=16 * 1024, busy=True),
    Load("16 KiB x 1000 connections", 1000, size=16 * 1024),
]
NOT_QUICK = {"16 KiB x 1 connection", "16 KiB x 1000 connections"}
NS = Metric("ns")
WARM_GOALS: Values = {
    ("sched_yield", "ns"): 70,
    ("spawn+run", "ns"): 200,
    ("Chan round trip", "ns"): 250,
}
MANY_GOALS: Values = {("spawn+run, 100000 live at once", "ns"): 6000}


def plan(context: Context) -> Plan:
    python = Pythons(context)
    load_program = context.builder.program("echo_load")
    if load_program is None:
        raise BenchError("echo_load is not built: run without --no-build")
    seconds, warm_up = (0.2, 0.1) if context.quick else (0.5, 0.2)
    generator = LoadGenerator(load_program, context.cores, seconds, warm_up)
    groups = [
        Group(
            load.case,
            _servers(context, python, generator, load),
            METRICS,
            reference_every=4 if context.quick else 2,
            seconds=seconds + warm_up + 0.25,
        )
        for load in LOADS
        if not (context.quick and load.case in NOT_QUICK)
    ]
    micro = [
        _micro(context, python, "warm costs", ["warm"], WARM_GOALS),
        _micro(context, python, "100000 live at once", ["many", "100000"], MANY_GOALS),
    ]
    if not context.quick:
        # Within what a process may map with a guard page a stack, for subjects that do it so.
        micro.append(_micro(context, python, "30000 live at once", ["many", "30000"], {}))
    # The first echo group and the microcosts before the rest: a short budget ends there.
    return Plan(
        [groups[0], *micro, *groups[1:]], python.notes(), end_round=generator.servers.stop_all
    )


class Pythons:
    """The environments: ours with the peers, and the published package's."""

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


def _servers(
    context: Context, python: Pythons, generator: LoadGenerator, load: Load
) -> list[Subject]:
    def subject(name: str, why_not: str, *argv: str | Path, ours: bool = False) -> Subject:
        spec = ServerSpec.of(*argv)
        return Subject(name, lambda: generator.measure(spec, load), ours, missing=why_not)

    def peer(name: str, kind: str, package: str = "") -> Subject:
        why_not = python.peers.why_not(package)
        script = BENCH / "peers" / "echo_py.py"
        return subject(name, why_not, python.peers.python, script, "{port}", kind)

    epoll = context.builder.program("echo_epoll")
    published = python.published
    ours = BENCH / "net" / "echo_runloom.py"
    return [
        subject("raw epoll", "" if epoll else "not built", epoll or "", "-p", "{port}"),
        subject(
            "runloom.sync", python.why_not_ours, python.peers.python, ours, "{port}", ours=True
        ),
        peer("gevent", "gevent", "gevent"),
        peer("asyncio protocol", "asyncio-protocol"),
        peer("asyncio streams", "asyncio-streams"),
        peer("uvloop protocol", "uvloop-protocol", "uvloop"),
        peer("uvloop streams", "uvloop-streams", "uvloop"),
        subject("runloom 0.2.0", published.why_not(PUBLISHED), published.python, ours, "{port}"),
    ]


def _micro(context: Context, python: Pythons, title: str, words: list[str], goals: Values) -> Group:
    def subject(
        name: str, kind: str, environment: Environment, why_not: str, ours: bool = False
    ) -> Subject:
        argv: list[str | Path] = [environment.python, BENCH / "peers" / "micro_py.py", kind, *words]
        measure = functools.partial(lines.measure, argv, (context.cores.server,))
        return Subject(name, measure, ours, missing=why_not)

    peers, published = python.peers, python.published
    return Group(
        title,
        [
            subject("greenlet", "greenlet", peers, peers.why_not("greenlet")),
            subject("runloom", "runloom", peers, python.why_not_ours, ours=True),
            subject("gevent", "gevent", peers, peers.why_not("gevent")),
            subject("asyncio", "asyncio", peers, ""),
            subject("runloom 0.2.0", "runloom-0.2.0", published, published.why_not(PUBLISHED)),
        ],
        [NS],
        goals,
        reference_every=0,
        seconds=1.5,
    )
