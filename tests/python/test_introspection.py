"""fibers(), stats() and the dump."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from fiber_support import LIMIT, output, parked, run

import runloom
import runloom_c
from runloom.sync import JoinSet, WaitGroup
from runloom_c import Chan, go


def test_P08_fibers_tell_what_they_wait_for() -> None:
    def main() -> None:
        chan: Chan[int] = Chan()
        reader, writer = os.pipe()
        lock = runloom_c.Lock()
        lock.acquire()
        waits: dict[str, tuple[str, str, Any]] = {
            "park": ("park", "park", runloom_c.park_self),
            "sleep": ("sleep", "sleep", lambda: runloom_c.sched_sleep(LIMIT)),
            "recv": ("chan-wait", "channel receive", chan.recv),
            "select": ("chan-wait", "select", lambda: runloom_c.select([("recv", Chan())])),
            "lock": ("park", "mutex", lock.acquire),
            "fd": ("io-wait", "poll", lambda: runloom_c.wait_fd(reader, 1)),
        }
        handles = {name: go(wait) for name, (_, _, wait) in waits.items()}
        parked(*handles.values())
        seen = {entry["id"]: entry for entry in runloom_c.fibers()}
        for name, (state, blocked_on, _) in waits.items():
            entry = seen[handles[name].id]
            assert (entry["state"], entry["blocked_on"]) == (state, blocked_on)
            assert entry["age"] >= 0
            assert entry["refcount"] >= 1
            assert entry["noyield"] is False
            assert entry["owner"] == threading.get_ident()
        assert seen[handles["fd"].id]["fd"] == reader
        me = runloom_c.current_g()
        assert me is not None
        assert seen[me.id]["state"] == "running"
        assert seen[me.id]["blocked_on"] is None
        for g in handles.values():
            g.cancel()
        os.close(writer)

    run(main)


def test_a_fiber_has_the_name_of_what_it_runs() -> None:
    """Also of methods, of what is built in, and where a primitive has put a function around it."""
    leave = runloom_c.Event()

    def handler() -> None:
        leave.wait()

    class Server:
        def accept(self) -> None:
            leave.wait()

    def main() -> None:
        group = WaitGroup()
        with JoinSet[Any]() as tasks:
            expected = {
                go(handler).id: "handler",
                go(Server().accept).id: "accept",
                go(leave.wait).id: "wait",
                tasks.spawn(handler).id: "handler",
                tasks.spawn(Server().accept).id: "accept",
                tasks.spawn(leave.wait).id: "wait",
            }
            before = {entry["id"] for entry in runloom_c.fibers()}
            group.go(handler)
            entries = runloom_c.fibers()
            (counted,) = (entry["id"] for entry in entries if entry["id"] not in before)
            expected[counted] = "handler"
            names = {entry["id"]: entry["name"] for entry in entries}
            leave.set()
        assert {number: names[number] for number in expected} == expected

    run(main)


def test_a_fiber_that_has_not_begun() -> None:
    g = runloom_c.fiber_noyield(int)
    (entry,) = runloom_c.fibers()
    assert (entry["id"], entry["state"], entry["noyield"]) == (g.id, "new", True)
    assert runloom_c.fiber_count() == 1
    runloom_c.run()
    assert runloom_c.fiber_count() == 0
    assert runloom_c.fibers() == []


def test_fibers_of_all_threads_are_listed() -> None:
    ready, leave = threading.Event(), threading.Event()

    def work() -> None:
        def poll() -> None:
            while not leave.is_set():
                ready.set()
                runloom_c.sched_sleep(0.001)

        go(poll)
        runloom_c.run()

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(LIMIT)
    g = go(int)
    owners = {entry["owner"] for entry in runloom_c.fibers()}
    ids = [entry["id"] for entry in runloom_c.fibers()]
    leave.set()
    thread.join()
    runloom_c.run()
    assert owners == {thread.ident, threading.get_ident()}
    assert len(set(ids)) == len(ids) == 2
    assert g.id in ids


def test_dump(tmp_path: Any) -> None:
    def named_fiber() -> None:
        runloom_c.park_self()

    g = go(named_fiber)
    runloom_c.set_deadlock_mode(0)
    runloom_c.run()
    with open(tmp_path / "dump", "w+") as file:
        runloom_c.dump_fibers(file.fileno())
        runloom.dump(fd=file.fileno())
        file.seek(0)
        text = file.read()
    assert text.count(f"fiber {g.id} 'named_fiber'") == 2
    assert "1 parked" in text
    g.cancel()
    runloom_c.run()


def test_stats() -> None:
    before = runloom_c.stats()
    handles = [go(runloom_c.park_self), go(lambda: runloom_c.sched_sleep(LIMIT)), go(int)]
    assert runloom_c.stats()["ready"] == 3
    seen: list[dict[str, Any]] = []

    def look() -> None:
        parked(*handles[:2])
        seen.append(runloom_c.stats())
        for g in handles[:2]:
            g.cancel()

    go(look)
    runloom_c.run()
    (during,) = seen
    after = runloom.stats()
    assert during["running"] is True
    assert during["sleeping"] == 1
    assert during["completed"] == before["completed"] + 1
    assert after["completed"] == before["completed"] + 4
    assert (after["live"], after["running"], after["ready"]) == (0, False, 0)
    required = (
        "ready sleeping netpoll_parked completed running stack_size_default stack_hwm "
        "stack_completed stack_calibrated stack_painting backend netpoll"
    )
    assert set(required.split()) <= set(after)
    assert after["backend"] == runloom_c.backend() == runloom.backend() == "fcontext-asm"
    assert after["netpoll"] == runloom_c.netpoll_backend()
    assert after["stack_size_default"] == runloom_c.get_stack_size()


def test_high_water_mark_of_the_stack() -> None:
    assert runloom_c.current_g_hwm() == 0
    code = """
        import runloom_c
        def deep(n):
            return sorted([0], key=lambda _: deep(n - 1))[0] if n else 0
        def work():
            shallow = runloom_c.current_g_hwm()
            deep(60)
            print(0 < shallow < 1 << 16, runloom_c.current_g_hwm() > shallow + 50_000)
        runloom_c.go(work)
        runloom_c.run()
    """
    assert output(code) == "True True\n"


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="fd must be an integer"):
        runloom_c.dump_fibers("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        runloom_c.fiber_stack("x")  # type: ignore[arg-type]
    with pytest.raises(LookupError, match="no fiber"):
        runloom_c.fiber_stack(1 << 62)
