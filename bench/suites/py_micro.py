"""Python fibers: yield, spawn, Chan, 100,000 at once; against greenlet and gevent"""

import functools
from pathlib import Path

from harness import lines
from harness.build import BENCH, Environment
from harness.model import Group, Metric, Plan, Subject, Values
from harness.pythons import PUBLISHED, Pythons
from harness.registry import Context

METRICS = [Metric("ns"), Metric("bytes")]
WARM_GOALS: Values = {
    ("sched_yield", "ns"): 70,
    ("spawn+run, 100 at once", "ns"): 200,
    ("spawn+run, 2000 at once", "ns"): 200,
    ("Chan round trip", "ns"): 250,
    ("Lock acquire+release", "ns"): 60,
    ("park+wake+yield", "ns"): 200,
    ("select, 2 channels ready", "ns"): 200,
    ("call on a thread", "ns"): 8000,
}
MANY_GOALS: Values = {("spawn+run, 100000 live at once", "ns"): 6000}


def plan(context: Context) -> Plan:
    python = Pythons(context)
    groups = [
        _group(context, python, "warm costs", ["warm"], WARM_GOALS, seconds=1.0),
        _group(context, python, "100000 live at once", ["many", "100000"], MANY_GOALS),
        _group(context, python, "100000 parked at once", ["parked", "100000"], {}),
    ]
    if not context.quick:
        # Within what a process may map with a guard page a stack, for subjects that do it so.
        groups.append(_group(context, python, "30000 live at once", ["many", "30000"], {}))
    return Plan(groups, python.notes())


def _group(
    context: Context,
    python: Pythons,
    title: str,
    words: list[str],
    goals: Values,
    seconds: float = 2.0,
) -> Group:
    def subject(
        name: str, kind: str, environment: Environment, why_not: str, ours: bool = False
    ) -> Subject:
        argv: list[str | Path] = [environment.python, BENCH / "peers" / "micro_py.py", kind, *words]
        measure = functools.partial(lines.measure, argv, (context.cores.server,))
        return Subject(name, measure, ours, missing=why_not)

    peers, published = python.peers, python.published
    greenlet = subject("greenlet", "greenlet", peers, peers.why_not("greenlet"))
    gevent = subject("gevent", "gevent", peers, peers.why_not("gevent"))
    # A bare greenlet waits for nobody: there is nothing that it parks in.
    references = [gevent] if words[0] == "parked" else [greenlet, gevent]
    return Group(
        title,
        [
            references[0],
            subject("runloom", "runloom", peers, python.why_not_ours, ours=True),
            *references[1:],
            subject("asyncio", "asyncio", peers, ""),
            subject("runloom 0.2.0", "runloom-0.2.0", published, published.why_not(PUBLISHED)),
        ],
        METRICS,
        goals,
        reference_every=0,
        seconds=seconds,
    )
