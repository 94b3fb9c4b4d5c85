"""The public interface, name by name: what is there, how it is called, and its defaults.

A name that goes, or a default that changes, is a change for the programs that use it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import pydoc
import re
from pathlib import Path
from typing import Any

import pytest
from fiber_support import output

import runloom_c

# Each line: a name, and how it is called; "-" where Python can't tell (several shapes), "value" for
# what is no function.
API = {
    "runloom_c": """
        go(fn, /, *, stack_size=None)
        fiber(fn, stack_size=-1, fifo=False)
        fiber_fast(fn, stack_size=-1, fifo=False)
        fiber_n(fn, n, stack_size=0, indexed=False)
        fiber_noyield(fn, /)
        run()
        sched_yield()
        sched_yield_classic()
        sched_sleep(seconds, /)
        sched_stop()
        sched_reset()
        park_self()
        park(timeout=None, foreign_wakeable=False)
        unpark_many(handles, /)
        current_g()
        get_stack_size()
        set_stack_size(bytes, /)
        current_g_hwm()
        set_grow_down(enabled=True)
        grow_down_enabled()
        Chan value
        select(cases, default=False)
        wait_fd(fd, events, timeout_ms=-1)
        fd_read -
        fd_write(fd, data)
        tcp_recv -
        tcp_recv_alloc(sock, n, flags=0)
        tcp_send(sock, data, flags=0)
        tcp_send_once(sock, data, flags=0)
        file_read -
        file_write(fd, data, offset=-1)
        iouring_available()
        netpoll_cancel_fd(fd, /)
        netpoll_unregister(fd, /)
        cancel_all_parked()
        mn_init(n=0)
        mn_fiber(fn, /)
        mn_run()
        mn_fini()
        mn_hub_states()
        preempt_init(quantum_us=10000)
        preempt_fini()
        warmup(n, stack_size=None)
        prewarm(n, stack_size=None)
        blocking(fn, /, *args, **kwargs)
        backend()
        netpoll_backend()
        stats()
        fibers()
        fiber_count()
        fiber_stack(id, /)
        dump_fibers(fd=2)
        set_introspect_timestamps(on, /)
        get_introspect_timestamps()
        install_traceback_signal(signum=3)
        reset_after_fork()
        set_deadlock_mode(mode, /)
        get_deadlock_mode()
        count_deadlocked()
        set_max_fibers(n, /)
        get_max_fibers()
        live_fibers()
        enable_stack_advice(on=True)
        stack_advice()
        enable_stack_autosize(on=True, prescan=False)
        uninstall_crash_handler()
        crash_handler_installed()
        thread_init()
        thread_fini()
        G value
        Coro value
        TCPConn value
        Mutex value
        Lock value
        Event value
        Condition value
        Semaphore value
        Socket value
        Cancelled value
        CancelScope value
        serve(host, port, handler, *, acceptors=1, backlog=1024, reuse_port=False)
        __version__ value
    """,
    "runloom_c.G": """
        done value
        result value
        error value
        exception value
        id value
        wake(self, /)
        cancel(self, /)
        join(self, /, timeout=None)
        stack(self, /, limit=None)
    """,
    "runloom_c.Chan": """
        send(self, value, /)
        recv(self, /)
        try_send(self, value, /)
        try_recv(self, /)
        close(self, /)
        closed value
        capacity value
        __iter__ value
        __len__ value
    """,
    "runloom_c.TCPConn": """
        connect value
        listen value
        accept value
        recv value
        recv_into value
        send value
        send_all value
        close value
        fileno value
        setsockopt value
        closed value
        family value
    """,
    "runloom": """
        fiber -
        fiber_fast -
        yield_now()
        yield_()
        sleep(seconds, /)
        run(n, main_fn=None)
        current()
        backend()
        blocking(fn, /, *args, **kwargs)
        stats()
        dump(fd=2)
        hubs()
        serve(host, port, handler, *, acceptors=1, backlog=1024, reuse_port=False)
        set_grow_down(enabled=True)
        grow_down_enabled()
        timeout value
        shield(timeout=None)
        CancelScope value
        Cancelled value
        Goroutine value
        __version__ value
    """,
    "runloom.inspect": """
        fibers(stacks=False)
        count()
        stack(id, /)
        format(stacks=False)
        dump(file=None, stacks=False)
        enable_timestamps(on=True)
        install_dump_signal(signum=3)
        leaked(min_age=60.0, states=('chan-wait', 'park'))
        watch_leaks(interval=60.0, min_age=60.0, states=('chan-wait', 'park'), callback=None)
        set_deadlock_mode(mode)
        set_max_fibers(n, /)
        live_fibers()
        hubs()
        print_hubs(file=None)
        install_crash_handler(level=None, file=None)
        uninstall_crash_handler()
        crash_handler_installed()
        enable_stack_advice(on=True)
        stack_advice()
        print_stack_advice(file=None)
        enable_stack_autosize(on=True, prescan=False)
    """,
    "runloom.sync": """
        fiber -
        run(main_fn=None)
        sleep(seconds, /)
        yield_now()
        current()
        Chan value
        select(cases, default=False)
        park(timeout=None, foreign_wakeable=False)
        park_self()
        wake(g)
        unpark_many(handles, /)
        tcp_connect(host, port, *, timeout=None, source_address=None, no_delay=True)
        tcp_listen(host, port, *, backlog=128, reuse_port=False, reuse_address=True, no_delay=True)
        udp_endpoint(local_addr=None, remote_addr=None, *, family=0, reuse_address=False, \
reuse_port=False, allow_broadcast=False)
        getaddrinfo(host, port, family=0, type=0, proto=0, flags=0)
        getnameinfo(sockaddr, flags)
        open(file, mode='r', buffering=-1, encoding=None, errors=None, newline=None, \
closefd=True, opener=None)
        unix_connect(path, *, timeout=None)
        unix_listen(path, *, backlog=128, mode=None)
        socketpair(family=1, type=1, proto=0)
        tls_connect(host, port, *, context=None, server_hostname=None, timeout=None, \
source_address=None, no_delay=True, suppress_ragged_eofs=False, session=None)
        tls_listen(host, port, *, certfile=None, keyfile=None, context=None, backlog=128, \
reuse_port=False, reuse_address=True, no_delay=True, handshake_timeout=None, \
suppress_ragged_eofs=False)
        serve(host, port, handler, *, acceptors=1, backlog=1024, reuse_port=False)
        Lock value
        RLock value
        Event value
        Condition value
        Semaphore value
        Socket value
        WaitGroup value
        Future value
        JoinSet value
        gather(*functions)
        RWMutex value
        Once value
        once_value(fn)
        once_func(fn)
        Group value
        Watch value
    """,
    "runloom.time": """
        Sleep(seconds, /)
        After(seconds)
        NewTimer(seconds)
        NewTicker(seconds)
        Tick(seconds)
        Timer value
        Ticker value
    """,
    "runloom.time.Timer": "C value\n c value\n Stop(self)\n Reset(self, seconds)",
    "runloom.time.Ticker": "C value\n c value\n Stop(self)\n Reset(self, seconds)",
    "runloom.context": """
        Background()
        WithCancel(parent)
        WithTimeout(parent, seconds)
        WithDeadline(parent, when)
        WithValue(parent, key, value)
        CANCELED value
        DEADLINE_EXCEEDED value
    """,
    "runloom.context.Context": "done value\n err(self)\n deadline(self)\n value(self, key)",
    "runloom.dns": """
        getaddrinfo(host, port, family=0, type=0, proto=0, flags=0)
        getnameinfo(sockaddr, flags)
        query(name, type='A', *, timeout=None)
        stats()
        reload()
    """,
    "runloom.tls": """
        create_default_context(purpose=Purpose.SERVER_AUTH, *, cafile=None, capath=None, \
cadata=None)
        Context value
        TLSSocket value
        TLSSession value
    """,
}

STATS = """
    ready sleeping netpoll_parked completed running stack_size_default stack_hwm stack_completed
    stack_calibrated stack_painting backend netpoll
"""
FIBER = "id state blocked_on age refcount noyield owner"

# What is read from the environment, and what a program sees of it.
VARIABLES = {
    "RUNLOOM_GROW_DOWN": ("0", "runloom.grow_down_enabled()", "False"),
    "RUNLOOM_DEADLOCK": ("raise", "runloom_c.get_deadlock_mode()", "2"),
    "RUNLOOM_MAX_GOROUTINES": ("17", "runloom_c.get_max_fibers()", "17"),
    "RUNLOOM_INTROSPECT_TIME": ("1", "runloom_c.get_introspect_timestamps()", "True"),
    "RUNLOOM_CRASH": ("on", "runloom_c.crash_handler_installed()", "True"),
    "RUNLOOM_STACK_AUTOSIZE": ("1", "runloom_c.stack_autosize_enabled()", "True"),
    "RUNLOOM_NETPOLL": ("poll", "runloom_c.netpoll_backend()", "poll"),
    "RUNLOOM_STACK_SIZE": ("131072", "runloom_c.get_stack_size()", "131072"),
    "RUNLOOM_TRACEBACK": (
        "1",
        "[line for line in open('/proc/self/status') if line.startswith('SigCgt')]"
        "[0].split()[1][-1] in '4567cdef'",
        "True",
    ),
}


def find(path: str) -> Any:
    """A module, or a type in one."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        home, _, name = path.rpartition(".")
        return getattr(importlib.import_module(home), name)


def entries() -> list[tuple[str, str]]:
    return [
        (home, " ".join(line.split()))
        for home, lines in API.items()
        for line in lines.splitlines()
        if line.strip()
    ]


def signature_of(value: Any) -> str:
    signature = inspect.signature(value)
    parameters = [each.replace(annotation=inspect.Parameter.empty)
                  for each in signature.parameters.values()]  # fmt: skip
    text = str(signature.replace(parameters=parameters,
                                 return_annotation=inspect.Signature.empty))  # fmt: skip
    # Enum members are shown as their values, whatever the version of Python says.
    return re.sub(
        r"<\w+\.(\w+): (\d+)>", r"\2", re.sub(r"<Purpose\.(\w+).*?\)>", r"Purpose.\1", text)
    )


@pytest.mark.parametrize(("home", "entry"), entries(), ids=lambda each: str(each))
def test_a_name_of_the_interface(home: str, entry: str) -> None:
    name, rest = re.fullmatch(r"(\w+)(.*)", entry).groups()  # type: ignore[union-attr]
    value = getattr(find(home), name)
    if rest.strip() == "value":
        return
    assert callable(value)
    if rest.strip() == "-":
        return
    shown = signature_of(value)
    if name == "create_default_context":
        shown = re.sub(r"purpose=.*?, \*", "purpose=Purpose.SERVER_AUTH, *", shown)
    shown = re.sub(r"=<?(\w+\.)?AF_UNIX.*?>?,", "=1,", shown)
    shown = re.sub(r"=<?(\w+\.)?SOCK_STREAM.*?>?,", "=1,", shown)
    shown = re.sub(r"=<?(\w+\.)?AF_UNSPEC.*?>?,", "=0,", shown)
    assert shown == rest


@pytest.mark.parametrize("home", [each for each in API if "." not in each or each[8:].islower()])
def test_everything_public_is_explained(home: str) -> None:
    """Each public name has a docstring, and each module says what it exports."""
    module = find(home)
    if home != "runloom_c":
        assert module.__doc__
        assert set(module.__all__) <= set(dir(module))
    for name in getattr(module, "__all__", [each for each in dir(module) if each[0] != "_"]):
        value = getattr(module, name)
        if callable(value) and getattr(value, "__module__", "").startswith("runloom"):
            assert value.__doc__, f"{home}.{name} has no docstring"


@pytest.mark.parametrize(
    "kind",
    [getattr(runloom_c, each) for each in sorted(dir(runloom_c))
     if isinstance(getattr(runloom_c, each), type) and each[0] != "_"],
)  # fmt: skip
def test_every_method_is_explained(kind: type) -> None:
    for name, value in vars(kind).items():
        if name[0] != "_" and (callable(value) or inspect.isgetsetdescriptor(value)):
            assert value.__doc__, f"{kind.__name__}.{name} has no docstring"


def public_classes() -> list[type]:
    """Those that the modules export, and those of runloom that they are made from."""
    found: set[type] = set()
    for home in API:
        if "." in home and not home[8:].islower():
            continue
        module = find(home)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, type):
                found |= {each for each in value.__mro__ if each.__module__.startswith("runloom")}
    return sorted(found, key=lambda each: (each.__module__, each.__qualname__))


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: str(kind.__qualname__))
def test_every_method_of_the_package_is_explained(kind: type) -> None:
    assert kind.__doc__ or kind.__name__[0] == "_"
    for name, value in vars(kind).items():
        if name[0] == "_" or type(value).__name__ == "member_descriptor":
            continue  # a slot: it is explained where the class is
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if callable(value) or isinstance(value, property) or hasattr(value, "__get__"):
            assert value.__doc__, f"{kind.__qualname__}.{name} has no docstring"


@pytest.mark.parametrize("home", ["runloom", "runloom.sync"])
def test_fiber_has_the_name_that_programs_use(home: str) -> None:
    fiber = find(home).fiber
    assert (fiber.__module__, fiber.__name__) == (home, "fiber")
    assert pickle.loads(pickle.dumps(fiber)) is fiber
    assert (
        pydoc.render_doc(fiber, renderer=pydoc.plaintext)
        .splitlines()[2]
        .startswith("fiber(fn, /, *args,")
    )


def test_keys_of_dicts() -> None:
    assert set(STATS.split()) <= set(runloom_c.stats())
    seen: list[dict[str, Any]] = []
    runloom_c._run_main(lambda: seen.extend(runloom_c.fibers()))
    assert set(FIBER.split()) <= set(seen[0])


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_variable_of_the_environment(variable: str) -> None:
    value, expression, shown = VARIABLES[variable]
    code = f"import runloom, runloom_c; print({expression})"
    clean = {each: "" for each in os.environ if each.startswith("RUNLOOM_")}
    assert output(code, environment={**clean, variable: value}) == f"{shown}\n"
    assert output(code, environment=clean) != f"{shown}\n"


def test_variables_are_in_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    for variable in VARIABLES:
        assert variable in guide
