"""runloom.sync echo against raw epoll, gevent, asyncio and uvloop"""

from pathlib import Path

from harness.build import BENCH
from harness.echo import METRICS, Load, LoadGenerator, ServerSpec
from harness.model import BenchError, Group, Plan, Subject
from harness.pythons import PUBLISHED, Pythons
from harness.registry import Context

LOADS = [
    Load("64 B x 64 connections", 64),
    Load("64 B x 1000 connections", 1000),
    Load("64 B x 1 connection", 1, busy=True),
    Load("16 KiB x 64 connections", 64, size=16 * 1024),
    Load("16 KiB x 1 connection", 1, size=16 * 1024, busy=True),
    Load("16 KiB x 1000 connections", 1000, size=16 * 1024),
]
NOT_QUICK = {"16 KiB x 1 connection", "16 KiB x 1000 connections"}


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
    return Plan(groups, python.notes(), end_round=generator.servers.stop_all)


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
