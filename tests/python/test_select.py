"""select() over events, sockets and times, beside channels."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fiber_support import LIMIT, parked, run
from socket_support import failure, pair
from tls_support import NATIVE, client_context, server_context, tls_pair

import runloom
import runloom.sync as sync
import runloom_c
from runloom.sync import Chan, Event, select


def test_the_first_of_all_kinds() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            chan: Chan[int] = Chan(1)
            event = Event()

            def ask() -> Any:
                return select(
                    [
                        ("recv", chan),
                        ("event", event),
                        ("readable", ours),
                        ("after", LIMIT),
                    ]
                )

            waiting = runloom_c.go(ask)
            parked(waiting)
            chan.send(7)
            assert waiting.join() == (0, (7, True))
            waiting = runloom_c.go(ask)
            parked(waiting)
            event.set()
            assert waiting.join() == (1, None)
            event.clear()
            waiting = runloom_c.go(ask)
            parked(waiting)
            peer.sendall(b"x")
            assert waiting.join() == (2, None)
            assert ours.recv(10) == b"x"  # nothing was consumed

    run(main)


def test_a_time_is_a_case() -> None:
    def main() -> None:
        begin = time.monotonic()
        assert select([("recv", Chan(0)), ("after", 0.01), ("after", LIMIT)]) == (1, None)
        assert time.monotonic() - begin >= 0.01
        assert select([("after", LIMIT), ("after", 0.001)]) == (1, None)
        assert select([("after", 0)]) == (0, None)
        assert select([("after", -1), ("recv", Chan(0))]) == (0, None)
        # What is ready comes before a time that is up.
        chan: Chan[int] = Chan(1)
        chan.send(1)
        assert select([("after", 0), ("recv", chan)]) == (1, (1, True))
        assert select([("after", math.inf), ("after", 0.001)]) == (1, None)

    run(main)


def test_with_a_default_nothing_is_waited_for() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            event = Event()
            cases: list[Any] = [("event", event), ("readable", ours), ("after", LIMIT)]
            assert select(cases, True) == -1
            assert select([("writable", ours)], True) == (0, None)
            event.set()
            assert select(cases, True) == (0, None)
            assert select([("after", LIMIT)], True) == -1
            assert select([("after", 0)], True) == (0, None)
            peer.close()
            assert select([("readable", ours)]) == (0, None)
            assert ours.recv(1) == b""

    run(main)


def test_descriptors_and_what_has_one() -> None:
    def main() -> None:
        reader, writer = os.pipe()
        waiting = runloom_c.go(lambda: select([("readable", reader), ("after", LIMIT)]))
        parked(waiting)
        os.write(writer, b"x")
        assert waiting.join() == (0, None)
        left, right = socket.socketpair()
        with left, right:
            assert select([("readable", left), ("writable", right)]) == (1, None)
        os.close(reader)
        os.close(writer)
        error = failure(select, [("readable", reader)])
        assert isinstance(error, OSError)
        with open("/dev/null") as file, open(__file__) as regular:
            assert isinstance(failure(select, [("readable", regular)]), PermissionError)
            del file

    run(main)


def test_a_close_ends_it() -> None:
    def main() -> None:
        with pair() as (ours, _):
            waiting = runloom_c.go(lambda: failure(select, [("readable", ours), ("after", LIMIT)]))
            parked(waiting)
            ours.close()
            assert isinstance(waiting.join(), OSError)
            assert isinstance(failure(select, [("readable", ours)]), OSError)

    run(main)


def test_bytes_that_have_left_the_descriptor(tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(NATIVE), server_context(NATIVE, tmp_path)) as (ours, theirs):
            theirs.sendall(b"0123456789")
            assert ours.recv(2) == b"01"
            assert select([("readable", ours), ("after", LIMIT)]) == (0, None)
            assert ours.recv(100) == b"23456789"
            assert select([("readable", ours), ("after", 0.001)]) == (1, None)
        plain, other = sync.socketpair()
        with plain, other:
            plain._give_back(b"early")
            assert select([("readable", plain), ("after", LIMIT)]) == (0, None)

    run(main)


def test_a_thread_sets_the_event() -> None:
    def main() -> None:
        runloom_c.set_deadlock_mode(2)
        event = Event()
        thread = threading.Thread(target=lambda: (time.sleep(0.005), event.set()))
        thread.start()
        assert select([("event", event), ("recv", Chan(0))]) == (0, None)
        thread.join()

    run(main)


def test_ready_cases_are_chosen_fairly() -> None:
    def main() -> None:
        with pair() as (ours, _):
            event = Event()
            event.set()
            chan: Chan[int] = Chan(1000)
            for each in range(1000):
                chan.send(each)
            counts = [0, 0, 0]
            for _ in range(600):
                index, _ = select([("event", event), ("recv", chan), ("writable", ours)])
                counts[index] += 1
            assert min(counts) > 100, counts

    run(main)


def test_scopes_end_it() -> None:
    def main() -> None:
        with runloom.CancelScope(0.002) as scope:
            select([("event", Event()), ("after", LIMIT)])
        assert scope.cancelled_caught
        with runloom.CancelScope(0.002) as scope:
            select([("after", LIMIT)])
        assert scope.cancelled_caught

    run(main)


def test_outside_of_a_fiber() -> None:
    event = Event()
    with pytest.raises(RuntimeError, match="outside of a fiber"):
        select([("event", event)])
    with pytest.raises(RuntimeError, match="outside of a fiber"):
        select([("after", 1)])
    event.set()
    assert select([("event", event)]) == (0, None)
    assert select([("after", 1)], True) == -1


@pytest.mark.parametrize(
    ("case", "error", "text"),
    [
        (("event", Chan(0)), TypeError, "case 0 needs an Event"),
        (("readable", "x"), TypeError, "integer|fileno"),
        (("readable", None), TypeError, "integer|fileno"),
        (("writable", -1), OSError, "Bad file descriptor"),
        (("after", "x"), TypeError, "seconds"),
        (("after", math.nan), ValueError, "NaN"),
        (("after",), TypeError, "case 0 must be"),
        (("event", Event(), 1), ValueError, "case 0 must be"),
        (("later", 1), ValueError, "case 0 must be"),
    ],
)
def test_wrong_cases_are_named(case: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        select([case])


def test_a_channel_is_no_list_of_cases() -> None:
    """It can be iterated over, and would be drained."""
    channel = Chan(1)
    channel.try_send(("after", 0))
    with pytest.raises(TypeError, match="needs a list of cases, not a channel"):
        select(channel)  # type: ignore[call-overload]
    assert len(channel) == 1


def test_a_case_that_changes_its_list() -> None:
    def main() -> None:
        class Evil:
            def fileno(self) -> int:
                cases.clear()
                return own.fileno()

        own, other = sync.socketpair()
        cases: list[Any] = [["readable", Evil()], ("recv", Chan(0))]
        with own, other:
            other.sendall(b"x")
            assert select(cases) == (0, None)

    run(main)


def test_the_name_of_a_case_may_be_of_a_subclass_of_str() -> None:
    class Name(str):
        pass

    def main() -> None:
        channel = sync.Chan(1)
        assert sync.select([(Name("send"), channel, 5)]) == (0, None)
        assert sync.select([(Name("recv"), channel)]) == (0, (5, True))

    run(main)
