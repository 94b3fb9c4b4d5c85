"""Microcosts of fibers, greenlets and tasks in Python. One line of JSON a case, as micro.hpp says.

Usage: micro_py.py {runloom,runloom-0.2.0,gevent,greenlet,asyncio} {warm,many,parked} [COUNT]

warm    costs of an operation with pools warm, best of three, the collector off
many    spawn COUNT that are all alive at once and run them, in a fresh process; each must have run
parked  memory of COUNT that wait for something
"""

import asyncio
import gc
import json
import re
import sys
import time

YIELDS = 40_000
SPAWNS = 2_000
ROUND_TRIPS = 20_000


def noop():
    pass


ran = 0


def count_up():
    global ran
    ran += 1


def report(case, value, unit):
    print(json.dumps({"case": case, "value": value, "unit": unit}), flush=True)


def timed(body):
    start = time.process_time_ns()
    body()
    return time.process_time_ns() - start


def memory():
    """Resident memory and page tables of this process, in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        found = re.findall(r"^(?:VmRSS|VmPTE):\s*(\d+) kB", status.read(), re.MULTILINE)
    return sum(map(int, found)) * 1024


class Runloom:
    """This package and the published one of the same name, by the functions that both document."""

    def __init__(self):
        import runloom_c

        self.c = runloom_c
        # The name in the reference, and the one that the published package has.
        self.spawn = getattr(runloom_c, "go", None) or runloom_c.fiber

    def yields(self, count):
        sched_yield = self.c.sched_yield

        def loop():
            for _ in range(count // 2):
                sched_yield()

        self.spawn(loop)
        self.spawn(loop)
        self.c.run()

    def spawns(self, count, body=noop):
        spawn = self.spawn
        for _ in range(count):
            spawn(body)
        self.c.run()

    def round_trips(self, count):
        ping, pong = self.c.Chan(0), self.c.Chan(0)

        def there():
            for _ in range(count):
                ping.send(1)
                pong.recv()

        def back():
            for _ in range(count):
                ping.recv()
                pong.send(1)

        self.spawn(there)
        self.spawn(back)
        self.c.run()

    def park(self, count):
        never = self.c.Chan(0)
        grown = []

        def measure():
            before = memory()
            for _ in range(count):
                self.spawn(never.recv)
            self.c.sched_yield()  # all of them run, and park
            grown.append(memory() - before)
            never.close()

        self.spawn(measure)
        self.c.run()
        return grown[0]


class Gevent:
    def __init__(self):
        import gevent
        import gevent.event
        import gevent.queue

        self.gevent = gevent

    def yields(self, count):
        sleep = self.gevent.sleep

        def loop():
            for _ in range(count // 2):
                sleep(0)

        self.gevent.joinall([self.gevent.spawn(loop), self.gevent.spawn(loop)])

    def spawns(self, count, body=noop):
        spawn = self.gevent.spawn
        self.gevent.joinall([spawn(body) for _ in range(count)])

    def round_trips(self, count):
        ping, pong = self.gevent.queue.Channel(), self.gevent.queue.Channel()

        def there():
            for _ in range(count):
                ping.put(1)
                pong.get()

        def back():
            for _ in range(count):
                ping.get()
                pong.put(1)

        self.gevent.joinall([self.gevent.spawn(there), self.gevent.spawn(back)])

    def park(self, count):
        never = self.gevent.event.Event()
        before = memory()
        all_of_them = [self.gevent.spawn(never.wait) for _ in range(count)]
        self.gevent.sleep(0)
        grown = memory() - before
        never.set()
        self.gevent.joinall(all_of_them)
        return grown


class Greenlet:
    """Bare switches: no scheduler, no channel."""

    def __init__(self):
        import greenlet

        self.greenlet = greenlet.greenlet

    def yields(self, count):
        def first():
            switch = other.switch
            for _ in range(count // 2):
                switch()

        def second():
            switch = one.switch
            while True:
                switch()

        one, other = self.greenlet(first), self.greenlet(second)
        one.switch()

    def spawns(self, count, body=noop):
        greenlet = self.greenlet
        for one in [greenlet(body) for _ in range(count)]:
            one.switch()


class Asyncio:
    def yields(self, count):
        async def loop():
            for _ in range(count // 2):
                await asyncio.sleep(0)

        async def main():
            await asyncio.gather(loop(), loop())

        asyncio.run(main())

    def spawns(self, count, body=noop):
        async def call():
            body()

        async def main():
            create = asyncio.create_task
            await asyncio.wait([create(call()) for _ in range(count)])

        asyncio.run(main())

    def round_trips(self, count):
        async def main():
            ping, pong = asyncio.Queue(1), asyncio.Queue(1)

            async def there():
                for _ in range(count):
                    await ping.put(1)
                    await pong.get()

            async def back():
                for _ in range(count):
                    await ping.get()
                    await pong.put(1)

            await asyncio.gather(there(), back())

        asyncio.run(main())

    def park(self, count):
        async def main():
            never = asyncio.Event()
            before = memory()
            tasks = [asyncio.create_task(never.wait()) for _ in range(count)]
            await asyncio.sleep(0)
            grown = memory() - before
            never.set()
            await asyncio.wait(tasks)
            return grown

        return asyncio.run(main())


KINDS = {
    "runloom": Runloom,
    "runloom-0.2.0": Runloom,
    "gevent": Gevent,
    "greenlet": Greenlet,
    "asyncio": Asyncio,
}


def main():
    kind, mode = KINDS[sys.argv[1]](), sys.argv[2]
    if mode == "warm":
        gc.disable()
        kind.spawns(SPAWNS)
        cases = [
            ("sched_yield", "yields", YIELDS),
            ("spawn+run", "spawns", SPAWNS),
            ("Chan round trip", "round_trips", ROUND_TRIPS),
        ]
        for case, name, count in cases:
            body = getattr(kind, name, None)
            if body:
                best = min(timed(lambda: body(count)) for _ in range(3))  # noqa: B023
                report(case, best / count, "ns")
    elif mode == "many":
        count = int(sys.argv[3])
        took = timed(lambda: kind.spawns(count, count_up))
        if ran != count:
            sys.exit(f"only {ran} of {count} ran")
        report(f"spawn+run, {count} live at once", took / count, "ns")
    else:
        count = int(sys.argv[3])
        report("parked Python fiber", kind.park(count) / count, "bytes")


if __name__ == "__main__":
    main()
