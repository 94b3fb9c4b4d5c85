"""Microcosts: switch, spawn, channel, mutex, timer, park, wake, stack; against Go, Boost.Fiber"""

import json
from pathlib import Path

from harness import lines, process
from harness.model import BenchError, Group, Metric, Plan, Reading, Subject, Values, missing
from harness.registry import Context

NS = Metric("ns")
GOALS_ONE_CORE: Values = {
    ("yield", "ns"): 15,
    ("spawn+join", "ns"): 100,
    ("channel round trip", "ns"): 90,
    ("stack get+put", "ns"): 50,
}


def plan(context: Context) -> Plan:
    one_core = _group(context, "one core", "one-core", (context.cores.server,), GOALS_ONE_CORE)
    two_cores = _group(context, "two cores", "two-cores", context.cores.both, {})
    return Plan([one_core, two_cores], [context.builder.versions])


def _group(context: Context, title: str, mode: str, cpus: tuple[int, ...], goals: Values) -> Group:
    def subject(name: str, program: str, ours: bool = False) -> Subject:
        path = context.builder.program(program)
        if path is None:
            return missing(name, f"{program} is not built: see what CMake says of it", ours)
        if ours:
            return Subject(name, lambda: _google_benchmark(path, mode, cpus), ours)
        env = {"GOMAXPROCS": str(len(cpus))}
        return Subject(name, lambda: lines.measure([path, mode], cpus, env), ours)

    # What a switch costs at least: two jumps of Boost.Context and no scheduler.
    bare = [subject("bare fcontext", "micro_fcontext")] if mode == "one-core" else []
    return Group(
        title,
        [
            subject("Go", "micro_go"),
            subject("runloom", "micro_runloom", ours=True),
            subject("Boost.Fiber", "micro_boost_fiber"),
            subject("std::thread", "micro_std_thread"),
            *bare,
        ],
        [NS],
        goals,
        seconds=1.0,
    )


def _google_benchmark(path: Path, mode: str, cpus: tuple[int, ...]) -> Reading:
    """The best of three repetitions, as the peers do it. Cases are named "one-core/yield"."""
    done = process.run(
        [
            path,
            f"--benchmark_filter=^{mode}/",
            "--benchmark_format=json",
            "--benchmark_repetitions=3",
            "--benchmark_min_time=0.02",
        ],
        timeout=lines.SECONDS,
        cpus=cpus,
    )
    clock = "cpu_time" if mode == "one-core" else "real_time"
    values: Values = {}
    for row in json.loads(done.stdout)["benchmarks"]:
        if row.get("error_occurred"):
            raise BenchError(f"{row['run_name']}: {row.get('error_message', 'failed')}")
        if row["run_type"] == "iteration":
            case = row["run_name"].split("/")[1]
            values[case, "ns"] = min(float(row[clock]), values.get((case, "ns"), float("inf")))
    return Reading(values, done.cpu)
