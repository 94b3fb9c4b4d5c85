"""The C++ examples of names: lookup, the caching forwarder, and clients that connect by name, with
dnsmasq, dig and plain sockets on the other side."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from example_process import LIMIT, binary, until

pytestmark = [
    pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="dnsmasq is not installed"),
    pytest.mark.skipif(shutil.which("dig") is None, reason="dig is not installed"),
]

RECORDS = [
    "--host-record=www.example.test,192.0.2.1,2001:db8::1,300",
    "--host-record=here.example.test,127.0.0.1,300",
    "--cname=alias.example.test,www.example.test,300",
    "--mx-host=example.test,mail.example.test,10",
    "--txt-record=example.test,some text,more",
    "--srv-host=_http._tcp.example.test,www.example.test,8080,1,2",
    "--caa-record=example.test,0,issue,ca.test",
    "--ptr-record=9.2.0.192.in-addr.arpa,nine.example.test",
    "--local=/example.test/",
    "--local-ttl=300",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dig(port: int, *words: str) -> str:
    command = ["dig", "@127.0.0.1", "-p", str(port), "+tries=1", "+time=2", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT).stdout


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    """The port of a dnsmasq that knows RECORDS."""
    words = ["--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces"]
    words += ["--conf-file=/dev/null", "--pid-file=", "--listen-address=127.0.0.1"]
    for _ in range(5):  # it needs a port that is free for UDP, too
        port = free_port()
        server = subprocess.Popen(
            ["dnsmasq", *words, f"--port={port}", *RECORDS], stderr=subprocess.DEVNULL
        )
        try:
            end = time.monotonic() + LIMIT
            while server.poll() is None and "192.0.2.1" not in dig(port, "www.example.test"):
                assert time.monotonic() < end, f"dnsmasq did not answer in {LIMIT} s"
            if server.poll() is None:
                yield port
                return
        finally:
            server.kill()
            server.wait()
    pytest.fail("dnsmasq did not start")


def lookup(port: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(binary("lookup")), "--server", f"127.0.0.1:{port}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["www.example.test"], ["192.0.2.1", "2001:db8::1"]),
        (["alias.example.test"], ["# alias.example.test is www.example.test", "192.0.2.1",
                                  "2001:db8::1"]),
        (["127.1"], ["# 127.1 is 127.1", "127.0.0.1"]),
        (["192.0.2.9"], ["nine.example.test"]),
        (["example.test", "MX"], ["example.test. 300 IN MX 10 mail.example.test."]),
        (["example.test", "txt", "caa"], ['example.test. 300 IN CAA 0 issue "ca.test"',
                                          'example.test. 300 IN TXT "some text" "more"']),
        (["_http._tcp.example.test", "SRV"],
         ["_http._tcp.example.test. 300 IN SRV 1 2 8080 www.example.test."]),
        (["alias.example.test", "A"], ["alias.example.test. 300 IN CNAME www.example.test.",
                                       "www.example.test. 300 IN A 192.0.2.1"]),
    ],
)  # fmt: skip
def test_lookup_prints(upstream: int, words: list[str], lines: list[str]) -> None:
    done = lookup(upstream, *words)
    printed = [line for line in done.stdout.splitlines() if line != "# 127.1 is 127.1"]
    assert sorted(printed) == sorted(line for line in lines if line != "# 127.1 is 127.1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.example.test"], "no.example.test: Name or service not known"),
        (["no.example.test", "A"], "no.example.test A: Name or service not known"),
        (["www.example.test", "MX"], "www.example.test MX: No address associated with hostname"),
        (
            ["192.0.2.77"],
            "192.0.2.77: Temporary failure in name resolution (the server refused)",
        ),
    ],
)
def test_lookup_says_why_not(upstream: int, words: list[str], message: str) -> None:
    done = lookup(upstream, *words)
    assert done.stderr == message + "\n"
    assert done.returncode == 1


@pytest.mark.parametrize("words", [[], ["a", "NOTYPE"], ["--server", "nowhere", "a"]])
def test_lookup_refuses_bad_arguments(words: list[str]) -> None:
    done = subprocess.run([binary("lookup"), *words], capture_output=True, timeout=LIMIT)
    assert done.returncode == 2


# ---------------------------------------------------------------- the caching forwarder


class Cache:
    """example_dns_cache, from its first line to its clean end."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [binary("dns_cache"), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        line = self.process.stdout.readline() if ready else ""
        match = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        if match is None:
            self.process.kill()
            raise AssertionError(f"it said {line!r} and {self.process.communicate()[1]!r}")
        self.port = int(match[1])

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        out, errors = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, errors
        assert "Sanitizer" not in errors, errors
        return out


@contextmanager
def cache(*arguments: str) -> Iterator[Cache]:
    running = Cache(*arguments)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.communicate()


def test_cache_answers_from_its_memory(upstream: int) -> None:
    with cache("--upstream", f"127.0.0.1:{upstream}") as server:
        first = dig(server.port, "+noall", "+answer", "www.example.test")
        assert re.search(r"www\.example\.test\.\s+300\s+IN\s+A\s+192\.0\.2\.1", first)
        until(
            lambda: re.search(
                r"\s29\d\s", dig(server.port, "+noall", "+answer", "www.example.test")
            ),
            "a record that has less to live",
        )
        assert "NXDOMAIN" in dig(server.port, "no.example.test")
        report = server.end()
    assert re.search(
        r"^\d+ questions, [1-9]\d* from memory, 0 from the hosts file, 2 asked$", report, re.M
    )


def test_cache_has_a_hosts_file_of_its_own(upstream: int, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("192.0.2.66 www.example.test\n192.0.2.67 own\n")
    with cache("--upstream", f"127.0.0.1:{upstream}", "--hosts", str(hosts)) as server:
        assert dig(server.port, "+short", "www.example.test") == "192.0.2.66\n"
        assert dig(server.port, "+short", "www.example.test", "AAAA") == ""
        assert dig(server.port, "+short", "own") == "192.0.2.67\n"
        assert dig(server.port, "+short", "here.example.test") == "127.0.0.1\n"
        hosts.write_text("192.0.2.68 own\n")
        until(lambda: dig(server.port, "+short", "own") == "192.0.2.68\n", "a new hosts file")
        server.end()


def test_cache_answers_when_nobody_does() -> None:
    with cache("--upstream", f"127.0.0.1:{free_port()}") as server:
        assert "SERVFAIL" in dig(server.port, "www.example.test")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as junk:
            for message in (b"", b"x" * 12, b"\0" * 40, b"\0" * 4 + b"\0\1" + b"\0" * 6 + b"\x3fa"):
                junk.sendto(message, ("127.0.0.1", server.port))
        assert "SERVFAIL" in dig(server.port, "www.example.test")
        server.end()


# ---------------------------------------------------------------- clients by name


def test_tcp_client_connects_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = subprocess.Popen(
            [binary("tcp_client"), f"localhost:{port}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert client.stdin is not None
        client.stdin.write(b"hello")
        client.stdin.close()
        client.stdin = None
        listener.settimeout(LIMIT)
        with listener.accept()[0] as connection:
            connection.settimeout(LIMIT)
            data = b""
            while piece := connection.recv(100):
                data += piece
            connection.sendall(data.upper())
        out, errors = client.communicate(timeout=LIMIT)
    assert out == b"HELLO"
    assert f"connected to 127.0.0.1:{port}" in errors.decode()
    assert client.returncode == 0


def test_tcp_client_names_what_failed() -> None:
    port = free_port()
    done = subprocess.run(
        [binary("tcp_client"), f"localhost:{port}"], input=b"", capture_output=True, timeout=LIMIT
    )
    assert f"127.0.0.1:{port}: Connection refused" in done.stderr.decode()
    assert done.returncode == 1


# ---------------------------------------------------------------- what the process does meanwhile


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_d16_a_hub_opens_no_file_and_waits_for_no_server(upstream: int, tmp_path: Path) -> None:
    """Which thread made which system call: the files that say how names are resolved are opened by
    a thread of the blocking pool alone, and nobody connects to where glibc's resolver would."""
    trace = tmp_path / "trace"
    # -D: the program stays our child, and its first thread is the hub's.
    command = ["strace", "-f", "-D", "-o", str(trace)]
    command += ["-e", "trace=open,openat,openat2,connect,poll,ppoll,prctl,stat,newfstatat"]
    command += [str(binary("lookup")), "--server", f"127.0.0.1:{upstream}", "www.example.test"]
    # A build with asan looks for leaks at its end, which it can't while it is traced.
    options = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "ASAN_OPTIONS": options}
    )
    out, _ = process.communicate(timeout=LIMIT)
    if process.returncode != 0 and not trace.exists():
        pytest.skip("strace may not trace here")
    assert sorted(out.split()) == ["192.0.2.1", "2001:db8::1"]
    until(lambda: "+++ exited with 0 +++" in trace.read_text(), "the end of the trace")
    lines = trace.read_text().splitlines()
    hub = str(process.pid)
    opened = [line for line in lines if re.search(r"/etc/(?!ld\.so)", line)]
    by_others = [line for line in opened if line.split()[0] != hub]
    for name in ("resolv.conf", "hosts", "services", "nsswitch.conf", "host.conf", "gai.conf"):
        assert any(f"/etc/{name}" in line for line in by_others), f"{name} was not read"
    assert [line for line in opened if line.split()[0] == hub] == []
    assert "libnss" not in "\n".join(lines)
    # Every wait of the hub for readiness is one that does not block.
    for line in lines:
        if line.split()[0] == hub and re.search(r"\b(poll|ppoll)\(", line):
            assert re.search(r", 0\)|tv_sec=0, tv_nsec=0", line), line
