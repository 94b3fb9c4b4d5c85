"""What holds for every type of the package, private ones too: half-made objects, copies, pickles,
subclasses, weak references, and circles that the collector has to find."""

from __future__ import annotations

import copy
import gc
import pickle
import ssl
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from socket_support import run
from types_support import MAKERS, all_types, type_name

import runloom.compat
import runloom.context
import runloom.dns
import runloom.sync
import runloom.time
import runloom.tls
import runloom_c
from runloom._unique import Unique
from runloom.sync import files, primitives, ssl_object
from runloom.sync import socket as socket_module
from runloom.time import _Alarm, _Call
from runloom.tls import _Password_of

pytestmark = [
    pytest.mark.version_sensitive,
    # Sockets and alarms are dropped as they are.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TYPES = all_types()
YIELDER: Any = type(runloom_c.sched_yield)
every_type = pytest.mark.parametrize("cls", TYPES, ids=type_name)


def on_fiber(test: Callable[[], Any]) -> Any:
    """What it returns; alarms that it leaves behind are cancelled."""

    def main() -> Any:
        try:
            return test()
        finally:
            end_alarms()

    return run(main)


def end_alarms() -> None:
    own = runloom_c.current_g()
    for each in gc.get_objects():
        if type(each) is runloom_c.G and each is not own and not each.done:
            each.cancel()
    runloom_c.sched_yield()


def test_each_type_can_be_made_here() -> None:
    assert set(MAKERS) == set(TYPES)
    for cls in TYPES:
        assert type(on_fiber(MAKERS[cls])) is cls


def test_objects_without_init_and_arguments_of_all_kinds() -> None:
    program = Path(__file__).with_name("types_probe.py")
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr[-5000:]


# ---------------------------------------------------------------- made twice


@every_type
def test_a_second_init_leaves_it_whole(cls: type) -> None:
    def main() -> None:
        subject = MAKERS[cls]()
        for arguments in ((), (subject,), (1, 2, 3, 4, 5, 6, 7)):
            try:
                subject.__init__(*arguments)
            except (TypeError, ValueError, RuntimeError, AttributeError) as error:
                assert str(error)
        assert type(subject).__name__ in repr(subject) or cls in (files._RawFile, YIELDER)

    on_fiber(main)


# ---------------------------------------------------------------- copies

# Plain data, and a function, which is its own copy.
RECORDS = {runloom.dns.Record, runloom.sync.ServerReport, runloom.sync.ServerTimeouts}
VALUES = {runloom_c.Cancelled, YIELDER, *RECORDS}


@every_type
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_only_values_are_copied(cls: type, duplicate: Callable[[Any], Any]) -> None:
    def main() -> None:
        subject = MAKERS[cls]()
        if cls in VALUES:
            twin = duplicate(subject)
            twin = pickle.loads(twin) if isinstance(twin, bytes) else twin
            assert type(twin) is cls
            assert repr(twin) == repr(subject)
            return
        with pytest.raises(
            TypeError, match=rf"cannot pickle '(runloom.*\.)?{cls.__name__}' object"
        ):
            duplicate(subject)

    on_fiber(main)


def test_sched_yield_looks_like_a_function() -> None:
    function = runloom_c.sched_yield
    assert (function.__name__, function.__qualname__) == ("sched_yield", "sched_yield")
    assert function.__module__ == "runloom_c"
    assert pickle.loads(pickle.dumps(function)) is copy.deepcopy(function) is function


# ---------------------------------------------------------------- subclasses

FINAL = {
    YIELDER, runloom_c.G, runloom_c.ServerConnection, runloom_c.TLSSession, runloom_c.TLSSocket,
    runloom_c._Server, runloom_c._TLSContext,
}  # fmt: skip


ARGUMENTS: dict[type, tuple[int, ...]] = {
    runloom.dns.Record: (1, 2, 3, 4),
    runloom.sync.ServerReport: (1, 2, 3, 4, 5),
    runloom.timeout: (1,),
}


@every_type
def test_subclasses(cls: Any) -> None:
    if cls in FINAL:
        with pytest.raises(TypeError, match=f"'.*{cls.__name__}' is not an acceptable base type"):
            type("Sub", (cls,), {})
        with pytest.raises(TypeError, match=f"cannot create '.*{cls.__name__}' instances"):
            cls()
        return

    class Sub(cls):
        """Without a call of the base's __init__."""

        def __init__(self, *_: Any) -> None:
            self.me = self

        def __del__(self) -> None:
            died.append(self)

    class Named(Sub):
        __slots__ = ("other",) if cls not in RECORDS else ()

    def main() -> None:
        arguments = ARGUMENTS.get(cls, ())
        for each in (Sub, Named):
            died.clear()
            subject = each(*arguments)
            assert isinstance(subject, cls)
            if "other" in vars(each):
                subject.other = [subject]
            with pytest.raises(TypeError, match="__class__"):
                subject.__class__ = int
            del subject
            gc.collect()
            assert len(died) == 1  # a circle through a subclass is found

    died: list[Any] = []
    on_fiber(main)


@every_type
def test_two_bases(cls: type) -> None:
    """Either Python finds that both want the same memory, or an object of both works."""
    if cls in FINAL:
        return
    for other in (runloom_c.Chan, runloom_c.Event):
        if cls is other:
            continue
        try:
            both: Any = type("Both", (cls, other), {"__init__": lambda self: None})
        except TypeError as error:
            assert "lay-out conflict" in str(error)
        else:
            assert cls not in vars(runloom_c).values()
            subject = both.__new__(both)
            runloom_c.Chan.close(subject) if other is runloom_c.Chan else other.set(subject)


# ---------------------------------------------------------------- references

KEPT = {runloom_c.ServerConnection, runloom_c.TLSSession}  # by their makers
NOT_WEAKLY = {Unique, YIELDER, primitives._Flight, ssl_object._Turn, *RECORDS}


@every_type
def test_weak_references_die_with_it(cls: type) -> None:
    def main() -> None:
        subject = None if cls in KEPT else MAKERS[cls]()
        if cls in NOT_WEAKLY:
            with pytest.raises(TypeError, match=f"weak reference to '(runloom_c.)?{cls.__name__}'"):
                weakref.ref(subject)
            return
        if subject is None:
            assert weakref.ref(MAKERS[cls]())() is not None
            return
        log: list[Any] = []
        reference = weakref.ref(subject, log.append)
        if isinstance(subject, runloom_c.G):
            subject.join()  # what has not ended is known to its thread
        if isinstance(subject, _Call):
            subject.Stop()
            runloom_c.sched_yield()
        assert reference() is subject
        subject = None
        gc.collect()
        assert (reference(), log) == (None, [reference])

    on_fiber(main)


@every_type
def test_the_type_is_counted_once_for_each_object(cls: type) -> None:
    def main() -> None:
        for _ in range(3):
            MAKERS[cls]()
        gc.collect()
        before = sys.getrefcount(cls)
        made = [MAKERS[cls]() for _ in range(20)]
        made.clear()
        end_alarms()
        gc.collect()
        assert abs(sys.getrefcount(cls) - before) < 5

    on_fiber(main)


class Marker:
    def __init__(self) -> None:
        self.holder: Any = None


def _condition(marker: Marker) -> Any:
    class Lock(runloom_c.RLock):
        pass

    lock = Lock()
    lock.marker = marker  # type: ignore[attr-defined]
    return runloom_c.Condition(lock)


def _fiber(marker: Marker) -> Any:
    fiber = runloom_c.go(lambda: marker)
    fiber.join()
    return fiber


def _failed_fiber(marker: Marker) -> Any:
    def fail() -> None:
        raise ValueError(marker)

    fiber = runloom_c.go(fail)
    with pytest.raises(ValueError):
        fiber.join()
    return fiber


def _tls_socket(marker: Marker) -> Any:
    context = _tls_context(marker)
    return context.wrap_socket(runloom.sync.socketpair()[0], True, False)


def _tls_context(marker: Marker) -> Any:
    context = runloom.tls.Context(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda *_: marker  # type: ignore[assignment, return-value]
    return context


def _with(cls: type, name: str) -> Callable[[Marker], Any]:
    """What has the marker as an attribute."""

    def make(marker: Marker) -> Any:
        subject = MAKERS[cls]()
        setattr(subject, name, marker)
        return subject

    return make


def _chan(marker: Marker) -> Any:
    channel: Any = runloom_c.Chan(1)
    channel.send(marker)
    return channel


def _alarm(cls: type) -> Callable[[Marker], Any]:
    def make(marker: Marker) -> Any:
        alarm = MAKERS[cls]()
        alarm.C.send(marker)
        return alarm

    return make


def _call(marker: Marker) -> Any:
    alarm = _Call(60, lambda: marker)  # type: ignore[arg-type, return-value]
    alarm.Stop()
    runloom_c.sched_yield()
    return alarm


def _future(marker: Marker) -> Any:
    future: Any = runloom.sync.Future()
    future.set_result(marker)
    return future


def _failed_future(marker: Marker) -> Any:
    future: Any = runloom.sync.Future()
    future.set_exception(ValueError(marker))
    return future


def _join_set(marker: Marker) -> Any:
    tasks: Any = runloom.sync.JoinSet(keep_results=True)
    tasks.spawn(lambda: marker)
    tasks.wait()
    return tasks


HOLDERS: dict[type, list[Callable[[Marker], Any]]] = {
    runloom_c.Cancelled: [runloom_c.Cancelled],
    runloom_c.Chan: [_chan],
    runloom_c.Condition: [_condition],
    runloom_c.G: [_fiber, _failed_fiber],
    runloom_c.TLSSocket: [_tls_socket],
    runloom.compat.Coro: [lambda marker: runloom.compat.Coro(lambda _: marker)],
    runloom.compat.TCPConn: [_with(runloom.compat.TCPConn, "marker")],
    runloom.context.Context: [
        lambda marker: runloom.context.WithValue(
            runloom.context.WithCancel(runloom.context.Background())[0], "key", marker
        )
    ],
    runloom.dns.Record: [lambda marker: runloom.dns.Record("", "", 0, marker)],  # type: ignore[arg-type]
    runloom.sync.Future: [_future, _failed_future],
    runloom.sync.JoinSet: [_join_set],
    runloom.sync.Server: [lambda marker: runloom.sync.Server(lambda _: marker)],
    runloom.sync.ServerReport: [lambda marker: runloom.sync.ServerReport("", None, "", marker, 0)],  # type: ignore[arg-type]
    runloom.sync.ServerTimeouts: [lambda marker: runloom.sync.ServerTimeouts(marker)],  # type: ignore[arg-type]
    runloom_c._Server: [lambda marker: runloom.sync.Server(lambda _: marker)._server],
    runloom.sync.TLSListener: [_with(runloom.sync.TLSListener, "context")],
    runloom.sync.Watch: [runloom.sync.Watch],
    files._RawFile: [_with(files._RawFile, "name")],
    primitives._Flight: [_with(primitives._Flight, "value")],
    socket_module._SocketIO: [_with(socket_module._SocketIO, "marker")],
    ssl_object.SSLObjectSocket: [_with(ssl_object.SSLObjectSocket, "marker")],
    ssl_object._Turn: [_with(ssl_object._Turn, "_end")],
    runloom.tls.Context: [_tls_context],
    runloom.time.Timer: [_alarm(runloom.time.Timer)],
    runloom.time.Ticker: [_alarm(runloom.time.Ticker)],
    _Alarm: [_alarm(_Alarm)],
    _Call: [_call],
    _Password_of: [lambda marker: _Password_of(lambda: marker)],  # type: ignore[arg-type, return-value]
}
# They refer to nothing that a program gives them; the circle through an attribute of a subclass is
# tested above. What a Group does is held by the fibers that do it.
HOLD_NOTHING = {
    runloom_c.CancelScope, runloom_c.Event, runloom_c.Lock, runloom_c.Mutex, runloom_c.RLock,
    runloom_c.Semaphore, runloom_c.ServerConnection, runloom_c.Socket, runloom_c.TLSSession,
    runloom_c._TLSContext,
    YIELDER, Unique, runloom.timeout, runloom.sync.Group, runloom.sync.Once, runloom.sync.RWMutex,
    runloom.sync.WaitGroup,
}  # fmt: skip


def test_it_is_known_of_each_type_what_it_holds() -> None:
    assert set(HOLDERS) | HOLD_NOTHING == set(TYPES)


@pytest.mark.parametrize("cls", HOLDERS, ids=type_name)
def test_P04_what_it_holds_may_refer_to_it(cls: type) -> None:
    def main() -> None:
        for hold in HOLDERS[cls]:
            marker = Marker()
            marker.holder = hold(marker)
            assert type(marker.holder) is cls
            gone = weakref.ref(marker)
            del marker
            gc.collect()
            assert gone() is None

    on_fiber(main)


@every_type
def test_the_collector_sees_the_type(cls: type) -> None:
    """An object of a heap type counts as a reference to it."""

    def main() -> None:
        subject = MAKERS[cls]()
        if gc.is_tracked(subject) and cls not in RECORDS:
            assert cls in gc.get_referents(subject)
        del subject

    on_fiber(main)
