"""The command line of bench/compare."""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from pathlib import Path

from harness import machine, plot, process, records, registry, report
from harness.build import Builder
from harness.model import BenchError, Group, Plan
from harness.sampling import Limits, Sampler

# --quick ends within 50 s a suite: the budget leaves room for the last group of a round.
QUICK = Limits(rounds=5, seconds=44, tries=1)
FULL = Limits(rounds=7, seconds=600, tries=2)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/compare",
        description="Measures runloom beside its peers, interleaved, and prints medians, spreads "
        "and ratios (above 1: runloom, or the row's subject, is better).",
        epilog="Exit status: 0 all that is installed was measured; 1 a subject failed, or "
        "runloom's own could not be measured; 2 usage, or the build failed.",
    )
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help="see --list; 'all' for all of them"
    )
    parser.add_argument(
        "--quick", action="store_true", help="within 50 s a suite, once all is built"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records there")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the ratios (needs matplotlib)"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 7; with --quick: up to 5")
    parser.add_argument("--budget", type=float, metavar="S", help="seconds a suite may take")
    parser.add_argument("--only", metavar="TEXT", help="only groups whose title contains TEXT")
    parser.add_argument("--no-build", action="store_true", help="measure what is built already")
    parser.add_argument("--list", action="store_true", help="list the suites and exit")
    arguments = parser.parse_args(words)
    if not arguments.list and not arguments.suites:
        parser.error("name a suite, or 'all'; --list shows them")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


def main(words: list[str]) -> int:
    arguments = parse(words)
    process.exit_on_signals()
    try:
        if arguments.list:
            for name in registry.paths():
                print(f"{name:16} {registry.load(name).summary}")
            return 0
        if arguments.plot:
            plot.check_available()
        return _Comparison(arguments).run()
    except BenchError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def say(text: str) -> None:
    print(f"bench/compare: {text}", file=sys.stderr, flush=True)


class _Comparison:
    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        default = QUICK if arguments.quick else FULL
        self._limits = Limits(
            rounds=arguments.rounds or default.rounds,
            seconds=arguments.budget or default.seconds,
            tries=default.tries,
        )
        self._machine = machine.describe()
        self._cores = machine.Cores.choose()
        self._builder = Builder(say, enabled=not arguments.no_build)
        self._records: list[records.Record] = []
        self._failed = False

    def run(self) -> int:
        names = self._arguments.suites
        suites = [registry.load(name) for name in (registry.paths() if names == ["all"] else names)]
        print(f"{self._machine}; {datetime.date.today()}")
        if self._cores.shared:
            print("Only one core is available: servers and load generator share it.")
        for suite in suites:
            self._run_suite(suite)
        if self._arguments.json:
            records.write(self._arguments.json, self._records)
        if self._arguments.plot:
            plot.draw(self._arguments.plot, self._records)
        return 1 if self._failed else 0

    def _run_suite(self, suite: registry.Suite) -> None:
        plan = suite.plan(registry.Context(self._arguments.quick, self._cores, self._builder))
        wanted = [group for group in plan.groups if self._wanted(group)]
        if not wanted:
            raise BenchError(
                f"suite {suite.name}: no group's title contains {self._arguments.only!r}"
            )
        plan = Plan(wanted, plan.notes, plan.begin_round, plan.end_round)
        print(f"\n## {suite.name}: {suite.summary}\n")
        for note in plan.notes:
            print(note)
        began = time.monotonic()
        probe = machine.Probe(self._builder.program("calib"), self._cores)
        for result in Sampler(probe, self._limits, say).run(plan):
            for table in report.tables(suite.name, result):
                print("\n" + table, end="")
            self._records += records.make(suite.name, result, self._machine)
            self._failed |= any(
                subject.ours or not subject.missing
                for subject in result.group.subjects
                if subject.name in result.failures
            )
        say(f"{suite.name} took {time.monotonic() - began:.1f} s")

    def _wanted(self, group: Group) -> bool:
        return self._arguments.only is None or self._arguments.only in group.title
