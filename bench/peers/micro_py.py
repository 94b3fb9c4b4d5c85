"""Microcosts of fibers, greenlets and tasks in Python. One line of JSON a case, as micro.hpp says.

Usage: micro_py.py {runloom,runloom-0.2.0,gevent,greenlet,asyncio} {warm,many,parked} [COUNT]

warm    costs of an operation with pools warm, best of three, the collector off
many    spawn COUNT that are all alive at once and run them, in a fresh process; each must have run.
        Time, and the memory that they needed at most
parked  the same of COUNT that each wait for something before they end
"""

import asyncio
import gc
import json
import re
import sys
import time

YIELDS = 40_000
SPAWNS = 40_000
AT_ONCE = [100, 2_000]
ROUND_TRIPS = 20_000
SELECTS = 2_000
CALLS = 2_000


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


def timed_by_the_wall(body):
    """For what happens on several threads, one after the other."""
    start = time.perf_counter_ns()
    body()
    return time.perf_counter_ns() - start


def memory(resident="VmRSS"):
    """Resident memory and page tables of this process, in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        pattern = rf"^(?:{resident}|VmPTE):\s*(\d+) kB"
        found = re.findall(pattern, status.read(), re.MULTILINE)
    return sum(map(int, found)) * 1024


def peak_memory():
    return memory("VmHWM")


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

    def spawns(self, count, body=noop, rounds=1):
        spawn, sched_yield = self.spawn, self.c.sched_yield

        def main():
            for _ in range(rounds):
                for _ in range(count):
                    spawn(body)
                sched_yield()  # all of them run, and end

        spawn(main)
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

    def locks(self, count):
        if hasattr(self.c, "Lock"):
            lock = self.c.Lock()
            acquire, release = lock.acquire, lock.release
        else:
            lock = self.c.Mutex()
            acquire, release = lock.lock, lock.unlock

        def loop():
            for _ in range(count):
                acquire()
                release()

        self.spawn(loop)
        self.c.run()

    def wakes(self, count):
        """A wakes B, which is parked, and lets it run."""
        park, sched_yield = self.c.park_self, self.c.sched_yield

        def parks():
            for _ in range(count):
                park()

        def main():
            other = self.spawn(parks)
            sched_yield()
            wake = other.wake
            for _ in range(count):
                wake()
                sched_yield()

        self.spawn(main)
        self.c.run()

    def selects(self, count):
        """Of two channels that both have something; the sends before are not timed."""
        select = self.c.select
        took = []

        def main():
            left, right = self.c.Chan(count), self.c.Chan(count)
            for _ in range(count):
                left.send(1)
                right.send(1)
            cases = [("recv", left), ("recv", right)]

            def loop():
                for _ in range(count):
                    select(cases)

            took.append(timed(loop))

        self.spawn(main)
        self.c.run()
        return took[0]

    def threads(self, count):
        blocking = self.c.blocking

        def loop():
            for _ in range(count):
                blocking(int)

        self.spawn(loop)
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
        import gevent.lock
        import gevent.queue

        self.gevent = gevent

    def yields(self, count):
        sleep = self.gevent.sleep

        def loop():
            for _ in range(count // 2):
                sleep(0)

        self.gevent.joinall([self.gevent.spawn(loop), self.gevent.spawn(loop)])

    def spawns(self, count, body=noop, rounds=1):
        spawn = self.gevent.spawn
        for _ in range(rounds):
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

    def locks(self, count):
        lock = self.gevent.lock.BoundedSemaphore()
        acquire, release = lock.acquire, lock.release
        for _ in range(count):
            acquire()
            release()

    def threads(self, count):
        spawn = self.gevent.get_hub().threadpool.spawn
        for _ in range(count):
            spawn(int).get()

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

    def spawns(self, count, body=noop, rounds=1):
        greenlet = self.greenlet
        for _ in range(rounds):
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

    def spawns(self, count, body=noop, rounds=1):
        async def call():
            body()

        async def main():
            create = asyncio.create_task
            for _ in range(rounds):
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

    def locks(self, count):
        async def main():
            lock = asyncio.Lock()
            for _ in range(count):
                await lock.acquire()
                lock.release()

        asyncio.run(main())

    def wakes(self, count):
        async def main():
            woken = asyncio.Event()

            async def parks():
                for _ in range(count):
                    await woken.wait()
                    woken.clear()

            other = asyncio.create_task(parks())
            await asyncio.sleep(0)
            for _ in range(count):
                woken.set()
                await asyncio.sleep(0)
            await other

        asyncio.run(main())

    def selects(self, count):
        """The first of two tasks that each take from a queue; the other is cancelled."""

        async def main():
            left, right = asyncio.Queue(), asyncio.Queue()
            for _ in range(count):
                left.put_nowait(1)
                right.put_nowait(1)
            start = time.process_time_ns()
            for _ in range(count // 2):  # both have taken one by then
                tasks = [asyncio.create_task(queue.get()) for queue in (left, right)]
                _, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in late:
                    task.cancel()
            return 2 * (time.process_time_ns() - start)

        return asyncio.run(main())

    def threads(self, count):
        async def main():
            run_in_executor = asyncio.get_running_loop().run_in_executor
            for _ in range(count):
                await run_in_executor(None, int)

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
        kind.spawns(max(AT_ONCE))
        cases = [
            ("sched_yield", "yields", YIELDS),
            ("Chan round trip", "round_trips", ROUND_TRIPS),
            ("Lock acquire+release", "locks", YIELDS),
            ("park+wake+yield", "wakes", ROUND_TRIPS),
        ]
        for case, name, count in cases:
            body = getattr(kind, name, None)
            if body:
                best = min(timed(lambda: body(count)) for _ in range(3))  # noqa: B023
                report(case, best / count, "ns")
        if hasattr(kind, "selects"):
            best = min(kind.selects(SELECTS) for _ in range(5))
            report("select, 2 channels ready", best / SELECTS, "ns")
        if hasattr(kind, "threads"):
            best = min(timed_by_the_wall(lambda: kind.threads(CALLS)) for _ in range(5))
            report("call on a thread", best / CALLS, "ns")
        for count in AT_ONCE:
            rounds = SPAWNS // count
            best = min(timed(lambda: kind.spawns(count, noop, rounds)) for _ in range(3))  # noqa: B023
            report(f"spawn+run, {count} at once", best / (rounds * count), "ns")
    elif mode == "many":
        count = int(sys.argv[3])
        case = f"spawn+run, {count} live at once"
        before = memory()
        took = timed(lambda: kind.spawns(count, count_up))
        if ran != count:
            sys.exit(f"only {ran} of {count} ran")
        report(case, took / count, "ns")
        report(case, (peak_memory() - before) / count, "bytes")
    else:
        count = int(sys.argv[3])
        case = f"spawn+park+end, {count} parked at once"
        grown = 0

        def park():
            nonlocal grown
            grown = kind.park(count)

        report(case, timed(park) / count, "ns")
        report(case, grown / count, "bytes")


if __name__ == "__main__":
    main()
