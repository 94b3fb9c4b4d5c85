"""scripts/test, once the machine is set up: runs the stages and adds up their results."""

from __future__ import annotations

import argparse
import signal
import sys
import time

from console import StageFailed, duration, say
from context import Context, find_pythons, main_version
from results import Results
from stages import STAGES, NothingToRun, Stage, usual, with_needs


def main() -> int:
    # A job that a shell starts in the background ignores SIGINT, and so would every test's child,
    # also those that are to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="scripts/test", add_help=False)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--stage", action="append", default=[])
    parser.add_argument("--python")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--build-only", action="store_true")  # for scripts/demo
    options = parser.parse_args()

    if options.list:
        for stage in STAGES:
            say(f"{stage.name:<11} {stage.budget:>3.0f} min   {stage.does}")
        return 0

    names = ["core", "extensions"] if options.build_only else options.stage
    try:
        stages = with_needs(names) if names else usual(options.full)
    except StageFailed as error:
        say(f"error: {error}")
        return 2
    context = Context(options.full, options.python, find_pythons(options.python))
    if not context.pythons:
        say("error: no Python with headers was found; run scripts/setup")
        return 2
    if options.build_only:
        context.only_python = main_version()
        context.pythons = [p for p in context.pythons if p.version == main_version()]

    start = time.monotonic()
    results = Results()
    failed: set[str] = set()
    lines = []
    for number, stage in enumerate(stages, start=1):
        say(f"==> [{number}/{len(stages)}] {stage.name}: {stage.does} ({stage.budget:.0f} min)")
        lines.append(run_stage(stage, context, results, failed))
    say("")
    say(f"{'stage':<11} {'budget':>8} {'time':>14}   result")
    for line in lines:
        say(line)
    say(f"total time {duration(time.monotonic() - start)}")
    if not options.build_only:
        say(str(results))
    return 1 if results.failed else 0


def run_stage(stage: Stage, context: Context, results: Results, failed: set[str]) -> str:
    """Runs one stage, adds its results, and returns its line of the summary."""
    start = time.monotonic()
    own = Results()
    try:
        if broken := failed.intersection(stage.needs):
            raise StageFailed(f"not run, because {' and '.join(sorted(broken))} failed")
        own = stage.run(context)
        outcome = str(own) if own.total else "ok"
        if own.failed:
            outcome = f"FAILED: {outcome}"
    except NothingToRun as reason:
        outcome = f"nothing to run: {reason}"
    except StageFailed as error:
        # A stage that fails as a whole counts as one failure, or the last line would hide it.
        own = Results(failed=1)
        outcome = f"FAILED: {error}"
        failed.add(stage.name)
    results.add(own)
    seconds = time.monotonic() - start
    say(f"    {outcome}")
    if seconds > stage.budget * 60:
        outcome += " (over budget)"
    return f"{stage.name:<11} {stage.budget:>4.0f} min {duration(seconds):>14}   {outcome}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("\nerror: interrupted")
        sys.exit(130)
