"""A program of a user who has all of the public interface checked by mypy --strict. It is not run.

tests/python/test_typing.py runs mypy over it, and sees that no public name is missing here.
assert_type() holds what a type checker knows of results, which is what generics are for.
"""

from __future__ import annotations

import io
import os
import socket
import ssl
import sys
from collections.abc import Callable
from typing import IO, Any, assert_type

import runloom
import runloom.context as context
import runloom.dns as dns
import runloom.inspect as inspect
import runloom.sync as sync
import runloom.sync.tls
import runloom.time as time
import runloom.tls as tls
import runloom_c
from runloom.sync.ssl_object import SSLObjectSocket

# ---- fibers ----


def half(number: int, *, up: bool = False) -> float:
    return number / 2 + up


def fibers() -> None:
    fiber = sync.fiber(half, 3, up=True)
    assert_type(fiber, runloom.G[float])
    assert_type(fiber.join(timeout=1), float)
    assert_type(fiber.result, float | None)
    assert_type(fiber.done, bool)
    assert_type(fiber.error, BaseException | None)
    assert_type(fiber.cancel(), bool)
    assert_type(fiber.stack(), list[tuple[str, int | None, str]])
    sync.fiber(half, "3")  # type: ignore[arg-type]
    sync.fiber(half, 3, down=True)  # type: ignore[call-arg]
    assert_type(runloom.fiber(half, 3, stack_size=65536), runloom.G[float])
    assert_type(runloom.fiber_fast(lambda: "text"), runloom.G[str])
    assert_type(runloom.fiber_noyield(lambda: b""), runloom.G[bytes])
    assert_type(runloom.fiber_n(lambda: None, 3), int)
    runloom.fiber_n(lambda number: number + 1, 3, indexed=True)
    assert_type(runloom_c.go(lambda: 1), runloom.G[int])
    handle: runloom.Goroutine[Any] | None = sync.current()
    assert runloom.current() is handle
    if handle is not None:
        handle.wake()
        sync.wake(handle)
        sync.unpark_many([handle])
    sync.park_self()
    assert_type(sync.park(1.0), bool)
    sync.sleep(1)
    runloom.sleep(0.5)
    sync.yield_now()
    runloom.yield_now()
    runloom.yield_()
    assert_type(runloom.blocking(half, 3, up=True), float)
    runloom.blocking(half, "3")  # type: ignore[arg-type]
    assert_type(runloom.wait_fd(0, 1, timeout_ms=10), int)
    assert_type(runloom.warmup(10), int)
    assert_type(runloom.prewarm(10, stack_size=65536), int)
    assert_type(runloom.current_g_hwm(), int)
    runloom.set_grow_down(False)
    assert_type(runloom.grow_down_enabled(), bool)
    assert_type(runloom.stats(), dict[str, Any])
    assert_type(runloom.hubs(), list[dict[str, Any]])
    assert_type(runloom.backend() + runloom.netpoll_backend() + runloom.__version__, str)
    runloom.dump()


def main() -> None:
    fibers()


assert_type(sync.run(main), int)
assert_type(runloom.run(1, main), int)


# ---- timeouts and cancellation ----


def timeouts() -> str:
    with runloom.timeout(1) as limit:
        assert_type(limit, runloom.timeout)
        limit.deadline += 5
    with runloom.shield(1):
        pass
    with runloom.CancelScope(1, shield=False) as scope:
        assert_type(scope, runloom.CancelScope)
        scope.cancel()
    assert_type(
        (scope.cancelled_caught, scope.cancel_called, scope.shield), tuple[bool, bool, bool]
    )
    try:
        with runloom.timeout(None):
            return "a block with a timeout swallows nothing, so the code below is not reached by it"
    except runloom.Cancelled:
        raise


# ---- channels ----


def channels() -> None:
    numbers = sync.Chan[int](3)
    numbers.send(1)
    numbers.send("one")  # type: ignore[arg-type]
    value, ok = numbers.recv()
    assert_type(value, int | None)
    assert_type(ok, bool)
    assert_type(numbers.try_send(2), bool)
    received = numbers.try_recv()
    if received is not None:
        assert_type(received[0], int | None)
    for number in numbers:
        assert_type(number, int)
    assert_type(list(numbers), list[int])
    assert_type((numbers.closed, numbers.capacity, len(numbers)), tuple[bool, int, int])
    numbers.close()
    inferred: runloom.Chan[str] = runloom.Chan()
    index, result = sync.select([("recv", numbers), ("send", inferred, "x"), ("after", 1.0)])
    assert_type(index, int)
    assert_type(result, tuple[Any, bool] | None)
    chosen = runloom.select([("readable", 0), ("event", sync.Event())], default=True)
    if chosen != -1:
        assert_type(chosen[0], int)
    timer = time.NewTimer(1)
    assert_type(timer, time.Timer)
    assert_type(timer.C, sync.Chan[float])
    assert_type(timer.Stop() or timer.Reset(2), bool)
    ticker: time.Ticker = time.NewTicker(1)
    ticker.Reset(2)
    ticker.Stop()
    for channel in (time.After(1), time.Tick(1)):
        assert_type(channel, sync.Chan[float])
    assert_type(time.AfterFunc(1, main), time.Timer)
    time.Sleep(1)


def contexts() -> None:
    ctx, cancel = context.WithTimeout(context.Background(), 1)
    assert_type(ctx, context.Context)
    assert_type(cancel, Callable[[], None])
    cancel()
    ctx, cancel = context.WithDeadline(context.TODO(), 1.0)
    ctx, cancel = context.WithCancel(context.WithValue(ctx, "key", "value"))
    assert_type(ctx.err(), str | None)
    assert_type(ctx.deadline(), float | None)
    assert_type(ctx.done, sync.Chan[None])
    assert_type(ctx.value("key"), Any)
    print(ctx.err() in (context.CANCELED, context.DEADLINE_EXCEEDED))


# ---- what fibers share ----


def locks() -> None:
    lock, rlock, mutex = sync.Lock(), sync.RLock(), sync.Mutex()
    with lock, rlock, mutex, runloom.Mutex(), sync.Semaphore(3):
        pass
    assert_type(lock.acquire(timeout=1), bool)
    condition = sync.Condition(lock)
    with condition:
        assert_type(condition.wait(1), bool)
        condition.wait_for(lambda: True, timeout=1)
        condition.notify_all()
    event = sync.Event()
    event.set()
    assert_type(event.wait(1), bool)
    assert_type(sync.Semaphore(3).acquire(2, timeout=1), bool)
    group = sync.WaitGroup()
    group.go(half, 3)
    assert_type(group.wait(1), bool)
    shared = sync.RWMutex()
    with shared.reader():
        pass
    with shared.writer():
        pass
    once = sync.Once()
    once.do(main)
    assert_type(once.done, bool)
    assert_type(sync.once_value(lambda: 1)(), int)
    sync.once_func(main)()
    assert_type(sync.Group().do("key", lambda: b"page"), tuple[bytes, bool])
    watch = sync.Watch("old")
    assert_type(watch.get(), tuple[str, int])
    assert_type(watch.wait_changed(1, timeout=1), tuple[str, int] | None)
    watch.set(1)  # type: ignore[arg-type]


def tasks() -> None:
    with sync.JoinSet[float](keep_results=True) as tasks:
        assert_type(tasks.spawn(half, 3), runloom.G[float])
        tasks.spawn(half, "3")  # type: ignore[arg-type]
        for result in tasks:
            assert_type(result, float)
        assert_type(tasks.next(timeout=1), float)
        assert_type(tasks.wait(1), bool)
        tasks.cancel()
    assert_type(sync.gather(lambda: 1, lambda: 2), list[int])
    future = sync.Future[str]()
    future.set_result("done")
    future.set_result(1)  # type: ignore[arg-type]
    future.set_exception(ValueError())
    future.add_done_callback(lambda each: print(each.result()))
    assert_type(future.result(timeout=1), str)
    assert_type(future.exception(), BaseException | None)


def without_types() -> None:
    """What is made without saying what it holds holds Any; nothing has to be annotated."""
    with sync.JoinSet() as tasks:
        tasks.spawn(half, 3)
        tasks.spawn(str, 3)
    assert_type(tasks, sync.JoinSet[Any])
    future = sync.Future()
    assert_type(future.result(), Any)
    channel = sync.Chan()
    channel.send(1)
    cases = [("recv", channel), ("after", 1.0)]  # a list that a program builds
    assert_type(sync.select(cases)[0], int)
    handles: list[runloom.G] = [sync.fiber(half, 3)]
    print(handles)


# ---- sockets ----


def sockets() -> None:
    with (
        sync.tcp_listen("127.0.0.1", 0, backlog=1024, reuse_port=True) as listener,
        sync.tcp_connect("localhost", 80, timeout=1) as conn,
    ):
        assert_type(listener, sync.Socket)
        accepted, _address = listener.accept()
        assert_type(accepted, sync.Socket)
        assert_type(conn.recv(100), bytes)
        assert_type(conn.recv_into(bytearray(10)), int)
        conn.sendall(memoryview(b"data"))
        conn.settimeout(1.5)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        assert_type(conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), int)
        assert_type(conn.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8), bytes)
        conn.shutdown(socket.SHUT_WR)
        with conn.makefile("rb") as file:
            file.readline()
        with sync.open("/etc/hostname", "rb") as binary:
            assert_type(conn.sendfile(binary), int)
    with sync.udp_endpoint(("127.0.0.1", 0)) as endpoint:
        data, peer = endpoint.recvfrom(100)
        assert_type(data, bytes)
        endpoint.sendto(data, peer)
    sync.unix_listen("/tmp/s", mode=0o600).close()
    sync.unix_connect(b"\0abstract", timeout=1).close()
    left, _right = sync.socketpair()
    assert_type(left, sync.Socket)
    sync.Socket(fileno=left.detach()).close()
    for entry in sync.getaddrinfo("localhost", "http", type=socket.SOCK_STREAM):
        assert_type(entry[0], socket.AddressFamily)
    assert_type(sync.getnameinfo(("127.0.0.1", 80), 0), tuple[str, str])


def handler(conn: sync.Socket) -> None:
    conn.served.await_request()
    conn.sendall(str(conn.served.peer).encode())
    served: sync.ServerConnection = conn.served
    assert_type(served.stopping, bool)
    assert_type(served.expired, str | None)


def secure_handler(conn: tls.TLSSocket) -> None:
    conn.sendall(conn.recv(100))
    conn.served.head_done()


def complain(report: sync.ServerReport) -> None:
    print(report.fault, report.error, report.text, report.peer, report.left_out)


def servers() -> None:
    timeouts = sync.ServerTimeouts(idle=30, head=None)
    context = tls.Context(ssl.PROTOCOL_TLS_SERVER)
    with sync.Server(handler, timeouts=timeouts, report=complain, linger=2) as server:
        print(server.listen("127.0.0.1", 0), server.listen_unix("/tmp/s", mode=0o600))
        server.listen_on(sync.Socket(fileno=3))
        server.serve(drain=10)
    server = sync.Server(secure_handler, context=context, trusted_proxies=["10.0.0.0/8"])
    fiber = sync.fiber(server.serve, drain=None, signals=None)
    server.begin_stop()
    server.stop(drain=1)
    assert_type(fiber.join(), None)
    assert_type(server.stats(), dict[str, Any])


def serve_old(conn: runloom_c.TCPConn) -> None:
    conn.send_all(conn.recv(100))


def old_names() -> None:
    sync.serve("127.0.0.1", 0, serve_old)
    runloom.serve("127.0.0.1", 0, serve_old)


def files() -> None:
    with sync.open("/tmp/x") as text:
        assert_type(text, IO[str])
        assert_type(text.read(), str)
    with sync.open("/tmp/x", "wb", buffering=0) as binary:
        assert_type(binary, IO[bytes])
        binary.write(b"data")
        binary.write("text")  # type: ignore[call-overload]
    mode = sys.argv[1]
    assert_type(sync.open("/tmp/x", mode), IO[Any])
    assert_type(runloom_c.file_read(0, 100, 0), bytes)
    assert_type(runloom_c.file_read(0, bytearray(100), 100), int)
    assert_type(runloom_c.file_write(1, b"data"), int)


# ---- TLS and names ----


def secure() -> None:
    trust = tls.create_default_context(ssl.Purpose.SERVER_AUTH, cafile="ca.pem")
    assert_type(trust, tls.Context)
    trust.minimum_version = ssl.TLSVersion.TLSv1_3
    trust.verify_mode = ssl.CERT_REQUIRED
    trust.check_hostname = True
    trust.set_alpn_protocols(["h2", "http/1.1"])

    def choose(conn: tls.TLSSocket, name: str | None, context: tls.Context) -> None:
        conn.context = context

    ours = tls.Context(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain("cert.pem", "key.pem", password=lambda: "secret")
    ours.sni_callback = choose
    with sync.tls_connect("example.org", 443, context=trust, timeout=1) as conn:
        assert_type(conn, tls.TLSSocket)
        assert_type(conn.version(), str | None)
        assert_type(conn.selected_alpn_protocol(), str | None)
        assert_type(conn.recv(100), bytes)
        session: tls.TLSSession | None = conn.session
        conn.sendall(b"data")
    with sync.tls_connect("example.org", 443) as conn:
        assert_type(conn, tls.TLSSocket)
    sync.tls_connect("example.org", 443, session=session).close()
    stock = ssl.create_default_context()
    assert_type(
        sync.tls_connect("example.org", 443, context=stock), tls.TLSSocket | SSLObjectSocket
    )
    with sync.tls_listen("127.0.0.1", 0, certfile="cert.pem") as listener:
        assert_type(listener, sync.TLSListener)
        accepted, _peer = listener.accept()
        assert_type(accepted, tls.TLSSocket | SSLObjectSocket)
        accepted.do_handshake()
    upgraded = sync.tcp_connect("example.org", 25).start_tls(trust, server_hostname="example.org")
    print(upgraded.getpeercert(), tls.DEFAULT_HANDSHAKE_TIMEOUT)


def names() -> None:
    for record in dns.query("example.org", "MX", timeout=1):
        assert_type(record, dns.Record)
        assert_type(record.ttl, int)
        name, kind, ttl, data = record
        print(name, kind, ttl, data)
    dns.reload()
    assert_type(dns.stats(), dict[str, Any])
    print(dns.getaddrinfo("localhost", 80), dns.getnameinfo(("127.0.0.1", 80), 0))


# ---- inspect ----


def look() -> None:
    assert_type(inspect.fibers(stacks=True), list[dict[str, Any]])
    assert_type(inspect.format(stacks=True), str)
    assert_type(inspect.count(), int)
    state, frames = inspect.stack(1)
    assert_type(state, str)
    assert_type(frames, list[tuple[str, int | None, str]])
    inspect.dump(io.StringIO(), stacks=True)
    inspect.install_dump_signal()
    inspect.enable_timestamps()
    inspect.leaked(60, ("park",))
    watch = inspect.watch_leaks(60, callback=print)
    assert_type(watch, runloom.G[None])
    inspect.set_deadlock_mode("raise")
    assert_type(inspect.get_deadlock_mode(), str)
    inspect.set_max_fibers(100_000)
    assert_type(inspect.get_max_fibers() + inspect.live_fibers(), int)
    assert_type(inspect.hubs(), list[dict[str, Any]])
    inspect.print_hubs()
    inspect.install_crash_handler("all", file=os.devnull)
    assert_type(inspect.crash_handler_installed(), bool)
    inspect.uninstall_crash_handler()
    inspect.enable_stack_advice()
    assert_type(inspect.stack_advice(), list[dict[str, Any]])
    inspect.print_stack_advice(sys.stderr)
    inspect.enable_stack_autosize(True, prescan=True)
    assert_type(inspect.stack_autosize_enabled(), bool)
