"""Names in Python: getaddrinfo, getnameinfo, and connecting by name."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from fiber_support import LIMIT, run
from socket_support import failure, listener

import runloom
import runloom.dns
import runloom.sync as sync
import runloom_c


def outcome(call: Any, *arguments: Any, **keywords: Any) -> Any:
    """What a call comes to, so that two can be compared."""
    try:
        return call(*arguments, **keywords)
    except socket.gaierror as error:
        return ("gaierror", error.errno)
    except UnicodeError:
        return "refused"  # by the codec, before glibc could
    except Exception as error:
        return type(error)


# None of them is asked for: what a server says is the same for both only while it answers.
HOSTS: list[Any] = [
    None, "", "localhost", "127.0.0.1", "127.1", "0x7f.1", "2130706433", "::1", "::ffff:1.2.3.4",
    "fe80::1%lo", b"127.0.0.1", 7, 1.5, [],
]  # fmt: skip
PORTS: list[Any] = [
    None, 0, 80, "80", "http", b"domain", 65535, 65536, -1, "nosuchservice", "", 1.5, [],
]  # fmt: skip
KINDS = [
    {}, {"type": socket.SOCK_STREAM}, {"type": socket.SOCK_DGRAM}, {"family": socket.AF_INET},
    {"family": socket.AF_INET6}, {"proto": socket.IPPROTO_TCP}, {"type": 99}, {"family": 99},
    {"flags": socket.AI_PASSIVE}, {"flags": socket.AI_NUMERICHOST},
    {"flags": socket.AI_CANONNAME, "type": socket.SOCK_STREAM}, {"flags": 1 << 30},
    {"flags": socket.AI_NUMERICSERV},
    {"flags": socket.AI_V4MAPPED, "family": socket.AF_INET6, "type": socket.SOCK_STREAM},
]  # fmt: skip


def test_D14_the_same_as_the_standard_library() -> None:
    """Every host with every port, and with every kind: addresses, order, and errors."""

    def main() -> None:
        for host, port in itertools.product(HOSTS, PORTS):
            if port == "nosuchservice" and host is None:
                continue  # glibc asks nobody; the code depends on its version
            expected = outcome(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            got = outcome(sync.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            assert got == expected or (expected == "refused" and not isinstance(got, list)), (
                host,
                port,
            )
        for host, kind in itertools.product(HOSTS, KINDS):
            expected = outcome(socket.getaddrinfo, host, 80, **kind)
            got = outcome(sync.getaddrinfo, host, 80, **kind)
            assert got == expected or (expected == "refused" and not isinstance(got, list)), (
                host,
                kind,
            )
        assert isinstance(sync.getaddrinfo("127.0.0.1", 1)[0][0], socket.AddressFamily)

    run(main)


SOCKADDRS: list[Any] = [
    ("127.0.0.1", 80), ("127.0.0.1", 0), ("::1", 80), ("::1", 80, 0, 0), ("fe80::1", 80, 0, 1),
    ("::1", 80, 1 << 20), ("127.0.0.1", 80, 1, 0), ("localhost", 80), ("127.0.0.1", -1),
    ("127.0.0.1",), "127.0.0.1", None, ("127.0.0.1", "80"), (b"x", 80), ("192.0.2.77", 64999),
]  # fmt: skip
NAME_FLAGS = [
    socket.NI_NUMERICHOST | socket.NI_NUMERICSERV, socket.NI_NUMERICHOST,
    socket.NI_NUMERICSERV, socket.NI_NUMERICHOST | socket.NI_DGRAM,
]  # fmt: skip


def test_D14_names_of_addresses() -> None:
    def main() -> None:
        for address, flags in itertools.product(SOCKADDRS, NAME_FLAGS):
            if address == ("192.0.2.77", 64999) and not flags & socket.NI_NUMERICHOST:
                continue  # it would ask a server
            expected = outcome(socket.getnameinfo, address, flags)
            got = outcome(sync.getnameinfo, address, flags)
            if isinstance(expected, type) and isinstance(got, type):
                continue  # both refuse the argument
            assert got == expected, (address, flags)

    run(main)


def test_the_text_of_an_error_names_the_host() -> None:
    def main() -> None:
        with pytest.raises(socket.gaierror, match=r"Name or service not known: no\.\.name"):
            sync.getaddrinfo("no..name", 80)
        with pytest.raises(ValueError, match="null character"):
            sync.getaddrinfo("a\0b", 80)
        with pytest.raises(UnicodeError):
            sync.getaddrinfo("x" * 64 + "é", 80)

    run(main)


def test_a_thread_outside_of_fibers() -> None:
    assert sync.getaddrinfo("localhost", 80) == socket.getaddrinfo("localhost", 80)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(sync.getaddrinfo("127.0.0.1", "http")))
    thread.start()
    thread.join()
    assert results[0][0][4] == ("127.0.0.1", 80)


def test_a_connect_names_every_address_that_failed() -> None:
    def main() -> None:
        with listener() as server:
            port = server.getsockname()[1]
        with pytest.raises(ConnectionRefusedError) as caught:
            sync.tcp_connect("localhost", port)
        assert "localhost" in str(caught.value)
        assert f"127.0.0.1:{port}" in str(caught.value)
        with pytest.raises(OverflowError):
            sync.tcp_connect("localhost", 65536)
        with pytest.raises(TypeError):
            sync.tcp_connect(7, 80)  # type: ignore[arg-type]

    run(main)


def test_counters() -> None:
    def main() -> None:
        before = runloom.dns.stats()
        sync.getaddrinfo("192.0.2.1", 80)
        sync.getaddrinfo("localhost", 80)
        after = runloom.dns.stats()
        assert after["lookups"] - before["lookups"] == 2
        assert after["numeric"] - before["numeric"] == 1
        assert isinstance(after["servers"], list)
        assert isinstance(after["ignored_sources"], list)
        runloom.dns.reload()
        assert runloom.dns.stats()["reloads"] > before["reloads"]

    run(main)


def test_wrong_questions() -> None:
    def main() -> None:
        with pytest.raises(ValueError, match="no record type"):
            runloom.dns.query("example.test", "B")
        with pytest.raises(TypeError):
            runloom.dns.query("example.test", 1)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            runloom.dns.query(None)  # type: ignore[arg-type]
        for name in ("no..name", "x" * 64, ".".join(["x" * 60] * 5)):
            assert isinstance(failure(runloom.dns.query, name), OSError)

    run(main)


# ---------------------------------------------------------------- with a server of our own

SERVER = '''
    import os, socket, struct, threading, time
    import runloom, runloom.dns, runloom.sync as sync, runloom_c

    def serve(answers, silent=()):
        """A name server on 127.0.0.1:53; what it was asked."""
        asked = []
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 53))

        def answer():
            while True:
                data, peer = sock.recvfrom(4096)
                labels, at = [], 12
                while data[at]:
                    labels.append(data[at + 1 : at + 1 + data[at]].decode())
                    at += 1 + data[at]
                name, kind = ".".join(labels).lower(), struct.unpack("!H", data[at + 1 : at + 3])[0]
                asked.append((name, kind))
                if name in silent:
                    continue
                rcode = 0 if any(each[0] == name for each in answers) else 3
                if name.startswith("servfail"):
                    rcode = 2
                records = [each for each in answers if each[0] == name and each[1] == kind]
                body = b"".join(
                    b"\\xc0\\x0c" + struct.pack("!HHIH", kind, 1, 60, len(rdata)) + rdata
                    for _, _, rdata in records
                )
                head = data[:2] + struct.pack("!HHHHH", 0x8180 | rcode, 1, len(records), 0, 0)
                sock.sendto(head + data[12 : at + 5] + body, peer)

        threading.Thread(target=answer, daemon=True).start()
        return asked

    def v4(name, address):
        return (name, 1, socket.inet_pton(socket.AF_INET, address))

    def v6(name, address):
        return (name, 28, socket.inet_pton(socket.AF_INET6, address))
'''


def in_namespace(tmp_path: Path, code: str, **files: str) -> str:
    """What a program prints whose files in /etc are these."""
    folder = tmp_path / "etc"
    folder.mkdir()
    contents = {
        "resolv_conf": "nameserver 127.0.0.1\noptions timeout:1 attempts:2\n",
        "hosts": "127.0.0.1 localhost\n",
        "nsswitch_conf": "hosts: files dns\n",
        **files,
    }
    for name, text in contents.items():
        (folder / name.replace("_", ".")).write_text(text)
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("dns_namespace.py"), folder,
         "-W", "ignore::DeprecationWarning", "-c",
         textwrap.dedent(SERVER) + textwrap.dedent(code)],
        capture_output=True, text=True, timeout=6 * LIMIT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_names_come_from_the_server(tmp_path: Path) -> None:
    printed = in_namespace(
        tmp_path,
        """
        asked = serve([v4("www.test", "127.0.0.2"), v4("www.test", "127.0.0.3"),
                       ("mail.test", 15, struct.pack("!H", 10) + b"\\x02mx\\x04test\\x00"),
                       v6("six.test", "::1")])

        def main():
            print(sorted(each[4][0] for each in sync.getaddrinfo("www.test", 80, type=1)))
            print(runloom.dns.query("mail.test", "MX"))
            print([each[4][0] for each in sync.getaddrinfo("six.test", 80, type=1)])
            for name in ("none.test", "servfail.test", "mail.test"):
                try:
                    sync.getaddrinfo(name, 80)
                except socket.gaierror as error:
                    print(error.errno == {"none.test": socket.EAI_NONAME, "servfail.test":
                          socket.EAI_AGAIN, "mail.test": socket.EAI_NODATA}[name], error)
            listener = sync.tcp_listen("127.0.0.3", 0)
            with sync.tcp_connect("www.test", listener.getsockname()[1]) as conn:
                print(conn.getpeername()[0])

        sync.run(main)
        """,
    )
    assert printed.splitlines() == [
        "['127.0.0.2', '127.0.0.3']",
        "[Record(name='mail.test', type='MX', ttl=60, data='10 mx.test.')]",
        "['::1']",
        "True [Errno -2] Name or service not known: none.test",
        "True [Errno -3] Temporary failure in name resolution: servfail.test",
        "True [Errno -5] No address associated with hostname: mail.test",
        "127.0.0.3",
    ]


def test_D02_hosts_of_one_family_ask_nobody(tmp_path: Path) -> None:
    printed = in_namespace(
        tmp_path,
        """
        asked = serve([])

        def main():
            print([each[4] for each in sync.getaddrinfo("four.test", 80, type=1)])
            print([each[4][0] for each in sync.getaddrinfo("six.test", 80, type=1)])
            print(asked)

        sync.run(main)
        """,
        hosts="127.0.0.1 localhost\n127.0.0.9 four.test\n::9 six.test\n",
    )
    assert printed.splitlines() == ["[('127.0.0.9', 80)]", "['::9']", "[]"]


def test_D03_the_files_are_read_again(tmp_path: Path) -> None:
    printed = in_namespace(
        tmp_path,
        """
        serve([v4("late.test", "127.0.0.5")])

        def main():
            try:
                sync.getaddrinfo("here.test", 80)
            except socket.gaierror:
                print("not yet")
            with open("/etc/hosts", "a") as hosts:
                hosts.write("127.0.0.7 here.test\\n")
            begin = time.monotonic()
            while True:
                try:
                    print(sync.getaddrinfo("here.test", 80, type=1)[0][4][0])
                    break
                except socket.gaierror:
                    assert time.monotonic() - begin < 10
                    sync.sleep(0.01)

        sync.run(main)
        """,
    )
    assert printed.splitlines() == ["not yet", "127.0.0.7"]


def test_D04_the_search_list_is_glibcs(tmp_path: Path) -> None:
    """Which names are asked for, by their dots and `ndots`; both resolvers ask the same server."""
    printed = in_namespace(
        tmp_path,
        """
        asked = serve([])

        def names(getaddrinfo, name):
            asked.clear()
            try:
                getaddrinfo(name, 80, family=socket.AF_INET, type=1)
            except socket.gaierror as error:
                return error.errno, [each[0] for each in asked]

        def main():
            for ndots in 0, 1, 5:
                with open("/etc/resolv.conf", "w") as conf:
                    conf.write(f"nameserver 127.0.0.1\\noptions timeout:1 ndots:{ndots}\\n"
                               "search one.test two.test\\n")
                reloads = runloom.dns.stats()["reloads"]
                begin = time.monotonic()
                while runloom.dns.stats()["reloads"] == reloads and time.monotonic() - begin < 10:
                    sync.getaddrinfo("localhost", 80)
                    sync.sleep(0.01)
                for name in "zero", "one.dot", "two.dots.here", "trailing.dot.":
                    ours, glibc = names(sync.getaddrinfo, name), names(socket.getaddrinfo, name)
                    assert ours == glibc, (ndots, name, ours, glibc)
                print(ndots, ours)

        sync.run(main)
        """,
    )
    assert printed.splitlines() == [
        f"{ndots} ({socket.EAI_NONAME}, ['trailing.dot'])" for ndots in (0, 1, 5)
    ]


def test_D06_D20_errors_and_servers(tmp_path: Path) -> None:
    """The first server is not there, or silent, or fails: which error, and who answers instead."""
    printed = in_namespace(
        tmp_path,
        """
        serve([v4("www.test", "127.0.0.2")], silent={"silent.test"})

        def code(name):
            try:
                return sync.getaddrinfo(name, 80, type=1)[0][4][0]
            except socket.gaierror as error:
                assert name in str(error)
                return error.errno

        def main():
            print(code("www.test"))  # 127.0.0.9 has no server: the port is unreachable
            print([each for each in runloom.dns.stats()["dead_servers"]])
            print([code(name) for name in ("none.test", "servfail.test", "silent.test")])
            print(runloom.dns.stats()["in_flight"])

        sync.run(main)
        """,
        resolv_conf="nameserver 127.0.0.9\nnameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
    )
    lines = printed.splitlines()
    assert lines[0] == "127.0.0.2"
    assert "127.0.0.9" in lines[1]
    assert lines[2:] == [str([socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_AGAIN]), "0"]


def test_D08_D22_long_answers(tmp_path: Path) -> None:
    """60 addresses over TCP, in pieces; and an answer of pointers to pointers ends soon."""
    printed = in_namespace(
        tmp_path,
        """
        def question_of(data):
            at = 12
            while data[at]:
                at += 1 + data[at]
            return data[12 : at + 5]

        def udp():
            while True:
                data, peer = datagrams.recvfrom(4096)
                question = question_of(data)
                if b"evil" in question:
                    at, body = 12 + len(question), b""
                    # Each name is a pointer to the one before.
                    for i in range(600):
                        to = 12 if i == 0 else at + 16 * (i - 1)
                        body += struct.pack("!HHHIH", 0xC000 | to, 1, 1, 60, 4) + bytes(6)
                    head = struct.pack("!HHHHH", 0x8180, 1, 600, 0, 0)
                    datagrams.sendto(data[:2] + head + question + body, peer)
                    continue
                head = struct.pack("!HHHHH", 0x8380, 1, 0, 0, 0)
                datagrams.sendto(data[:2] + head + question, peer)

        def tcp():
            while True:
                conn, _ = listener.accept()
                conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                data = conn.recv(2 + 4096)[2:]
                question = question_of(data)
                body = b"".join(
                    b"\\xc0\\x0c" + struct.pack("!HHIHBBBB", 1, 1, 60, 4, 192, 0, 2, i)
                    for i in range(60)
                )
                message = (data[:2] + struct.pack("!HHHHH", 0x8180, 1, 60, 0, 0) + question + body)
                message = struct.pack("!H", len(message)) + message
                for at in range(0, len(message), 7):
                    conn.sendall(message[at : at + 7])
                conn.recv(1)
                conn.close()

        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 53))
        listener = socket.create_server(("127.0.0.1", 53))
        for each in udp, tcp:
            threading.Thread(target=each, daemon=True).start()

        def main():
            found = sync.getaddrinfo("many.test", 80, family=socket.AF_INET, type=1)
            print(sorted(int(each[4][0].split(".")[3]) for each in found) == list(range(60)))
            begin = time.process_time()
            try:
                sync.getaddrinfo("evil.test", 80, family=socket.AF_INET, type=1)
            except socket.gaierror as error:
                print(error.errno == socket.EAI_AGAIN)
            print(time.process_time() - begin < 1)

        sync.run(main)
        """,
        resolv_conf="nameserver 127.0.0.1\noptions timeout:5 attempts:1\n",
    )
    assert printed.splitlines() == ["True", "True", "True"]


def test_D12_numbers_ask_nobody(tmp_path: Path) -> None:
    printed = in_namespace(
        tmp_path,
        """
        asked = serve([])

        def main():
            for host in "127.1", "0x7f.1", "017700000001", "2130706433", "::1", "fe80::1%lo":
                print(sync.getaddrinfo(host, 80, type=1)[0][4])
            try:
                sync.getaddrinfo("www.test", 80, flags=socket.AI_NUMERICHOST)
            except socket.gaierror as error:
                print(error.errno == socket.EAI_NONAME)
            print(asked)

        sync.run(main)
        """,
    )
    assert printed.splitlines() == [
        *["('127.0.0.1', 80)"] * 4, "('::1', 80, 0, 0)", "('fe80::1', 80, 0, 1)", "True", "[]",
    ]  # fmt: skip


def test_D16_nobody_waits_for_a_slow_name(tmp_path: Path) -> None:
    """No thread, no libc: other fibers run, a cancel and a timeout end the wait."""
    printed = in_namespace(
        tmp_path,
        """
        serve([], silent={"slow.test"})

        def main():
            ticks = []
            def tick():
                while True:
                    ticks.append(1)
                    sync.sleep(0.001)
            ticker = sync.fiber(tick)
            begin = time.monotonic()
            try:
                with runloom.timeout(0.05):
                    sync.getaddrinfo("slow.test", 80)
            except TimeoutError:
                print("timed out")
            try:
                sync.tcp_connect("slow.test", 80, timeout=0.05)
            except TimeoutError:
                print("timed out")
            threads = len(os.listdir("/proc/self/task"))
            waiting = [sync.fiber(sync.getaddrinfo, "slow.test", 80) for _ in range(100)]
            sync.sleep(0.01)
            print(len(os.listdir("/proc/self/task")) - threads)
            for each in waiting:
                each.cancel()
            for each in waiting:
                try:
                    each.join()
                except runloom.Cancelled:
                    pass
            ticker.cancel()
            assert len(ticks) > 10
            print(runloom.dns.stats()["in_flight"] <= 2)

        sync.run(main)
        """,
    )
    assert printed.splitlines() == ["timed out", "timed out", "0", "True"]


def test_D18_parent_and_child_resolve_by_themselves(tmp_path: Path) -> None:
    printed = in_namespace(
        tmp_path,
        """
        serve([v4(f"n{each}.test", "127.0.0.2") for each in range(200)])

        def look(first):
            for each in range(first, first + 50):
                assert sync.getaddrinfo(f"n{each}.test", 80, type=1)[0][4][0] == "127.0.0.2"

        def main():
            look(0)
            pid = os.fork()
            if pid == 0:
                try:
                    sync.run(lambda: look(50))
                    os._exit(0)
                finally:
                    os._exit(1)
            look(100)
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status))

        sync.run(main)
        """,
    )
    assert printed == "0\n"


def test_happy_eyeballs(tmp_path: Path) -> None:
    """The IPv6 address drops everything; the IPv4 one is tried a quarter of a second later."""
    printed = in_namespace(
        tmp_path,
        """
        serve([v6("both.test", "::1"), v4("both.test", "127.0.0.1")])

        def main():
            # A listener that never accepts, with a full queue: a SYN gets no answer.
            full = socket.socket(socket.AF_INET6)
            full.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            full.bind(("::1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = []
            for _ in range(3):
                filler = socket.socket(socket.AF_INET6)
                filler.setblocking(False)
                filler.connect_ex(("::1", port))
                fillers.append(filler)
            listener = sync.tcp_listen("127.0.0.1", port)
            with sync.tcp_connect("both.test", port, timeout=10) as conn:
                print(conn.getpeername()[0])

        sync.run(main)
        """,
    )
    assert printed == "127.0.0.1\n"


def test_RUNLOOM_DNS_leaves_names_to_glibc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNLOOM_DNS", "system")
    printed = in_namespace(
        tmp_path,
        """
        serve([v4("www.test", "127.0.0.2")])

        def main():
            print([each[4][0] for each in sync.getaddrinfo("www.test", 80, type=1)])
            print(runloom.dns.stats()["system_calls"])

        sync.run(main)
        """,
        nsswitch_conf="hosts: files mdns4_minimal dns\n",
    )
    assert printed.splitlines() == ["['127.0.0.2']", "1"]
    monkeypatch.delenv("RUNLOOM_DNS")
    second = tmp_path / "second"
    second.mkdir()
    printed = in_namespace(
        second,
        """
        def main():
            sync.getaddrinfo("localhost", 80)
            print(runloom.dns.stats()["ignored_sources"])

        sync.run(main)
        """,
        nsswitch_conf="hosts: files mdns4_minimal dns\n",
    )
    assert printed == "['mdns4_minimal']\n"


def test_hosts_of_tls_are_names(tmp_path: Path) -> None:
    from tls_support import NATIVE, client_context, server_context

    def main() -> None:
        with sync.tls_listen("127.0.0.1", 0, context=server_context(NATIVE, tmp_path)) as server:
            accepted = runloom_c.go(lambda: server.accept()[0].recv(1))
            with sync.tls_connect(
                "localhost", server.getsockname()[1], context=client_context(NATIVE)
            ) as conn:
                conn.sendall(b"x")
                assert accepted.join() == b"x"

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        run(main)
