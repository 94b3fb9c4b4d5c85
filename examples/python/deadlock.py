"""Two fibers that wait for each other, and how to see where.

    python examples/python/deadlock.py
    python examples/python/deadlock.py --others

Each transfer locks one account and then the other, and two of them do it in opposite order. When
all fibers wait for each other, run() raises RuntimeError (with set_deadlock_mode("raise"); else it
writes them to stderr and returns), and dump() shows where each is. With --others another fiber
lives on, as in a server, so nobody notices; but those that have waited for long are suspects.
"""

import argparse
import sys

import runloom
from runloom import inspect, sync

SUSPICIOUS = 0.2  # seconds; in a server rather a minute


class Account:
    def __init__(self, money):
        self.money = money
        self.lock = sync.Lock()


def transfer(source, target, money):
    with source.lock:
        sync.yield_now()  # something else happens to come first
        with target.lock:  # in the order of some number of the accounts it would be right
            source.money -= money
            target.money += money


def heartbeat():
    while True:
        sync.sleep(0.05)


def show(suspects):
    print(f"{len(suspects)} fibers have waited for {SUSPICIOUS} s:", file=sys.stderr)
    for each in suspects:
        print(f"fiber {each['id']} in {each['blocked_on']}", file=sys.stderr)
        for file, line, function in each["stack"]:
            print(f'    File "{file}", line {line}, in {function}', file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--others", action="store_true", help="let another fiber live on")
    options = parser.parse_args()
    inspect.set_deadlock_mode("raise")

    def bank():
        first, second = Account(100), Account(100)
        transfers = [
            sync.fiber(transfer, first, second, 10),
            sync.fiber(transfer, second, first, 20),
        ]
        if options.others:
            alive = sync.fiber(heartbeat)
            found = sync.Chan(1)
            watch = inspect.watch_leaks(0.1, SUSPICIOUS, ("park",), found.try_send)
            show(found.recv()[0])
            for each in (alive, watch, *transfers):
                each.cancel()
        for each in transfers:
            each.join()

    try:
        sync.run(bank)
    except runloom.Cancelled:
        sys.exit("the transfers were cancelled")
    except RuntimeError as error:
        inspect.dump(stacks=True)
        sys.exit(str(error))


if __name__ == "__main__":
    main()
