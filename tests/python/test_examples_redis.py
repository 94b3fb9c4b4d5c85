"""examples/python/redis_server.py, driven by a client of its protocol, and by redis-cli and
redis-benchmark where they are installed."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from example_support import MEGABYTE, Example, command, output_of, running, tool
from socket_support import LIMIT, read_all


class Client:
    """Speaks RESP2. Errors are values."""

    def __init__(self, server: Example) -> None:
        self.sock = server.connect()
        self.file = self.sock.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.sock.close()

    def send(self, *words: Any) -> None:
        self.sock.sendall(encode(*words))

    def reply(self) -> Any:
        line = self.file.readline()
        assert line.endswith(b"\r\n"), line
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"+":
                return rest.decode()
            case b"-":
                return RuntimeError(rest.decode())
            case b":":
                return int(rest)
            case b"$":
                if rest == b"-1":
                    return None
                data = self.file.read(int(rest) + 2)
                assert data.endswith(b"\r\n")
                return data[:-2]
            case b"*":
                return [self.reply() for _ in range(int(rest))]
        raise AssertionError(line)

    def __call__(self, *words: Any) -> Any:
        self.send(*words)
        return self.reply()


def encode(*words: Any) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


@pytest.fixture
def server() -> Iterator[Example]:
    with running("redis_server") as example:
        yield example


@pytest.fixture
def redis(server: Example) -> Iterator[Client]:
    with Client(server) as client:
        yield client


def error(value: Any) -> str:
    assert isinstance(value, RuntimeError), value
    return str(value)


def test_redis_says_how_it_is_used() -> None:
    assert "python examples/python/redis_server.py" in output_of(command("redis_server", "--help"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_redis_ends_cleanly_with_connections_open(number: signal.Signals) -> None:
    example = Example("redis_server")
    with Client(example) as client:
        assert client("PING") == "PONG"
        example.end(number)


def test_redis_commands(redis: Client) -> None:
    assert redis("PING") == "PONG"
    assert redis("ping", "hi") == b"hi"
    assert redis("ECHO", b"\r\n\0\xff") == b"\r\n\0\xff"
    assert redis("GET", "a") is None
    assert redis("SET", "a", "") == "OK"
    assert redis("GET", "a") == b""
    assert redis("SET", "a", b"$5\r\n") == "OK"
    assert redis("MGET", "a", "none", "a") == [b"$5\r\n", None, b"$5\r\n"]
    assert redis("EXISTS", "a", "a", "none") == 2
    assert redis("INCR", "n") == 1
    assert redis("INCR", "n") == 2
    assert redis("INCRBY", "n", 40) == 42
    assert redis("INCRBY", "n", -43) == -1
    assert sorted(redis("KEYS", "*")) == [b"a", b"n"]
    assert redis("KEYS", "[^a]") == [b"n"]
    assert redis("DEL", "a", "n", "none") == 2
    assert redis("KEYS", "*") == []
    assert redis("CONFIG", "GET", "save", "appendonly") == [b"save", b"", b"appendonly", b""]
    assert redis("CLIENT", "SETINFO", "LIB-NAME", "x") == "OK"
    assert error(redis("SELECT", 1)) == "ERR DB index is out of range"
    assert redis("QUIT") == "OK"
    assert redis.file.read() == b""


def test_redis_options_of_set(redis: Client) -> None:
    assert redis("SET", "a", 1, "XX") is None
    assert redis("SET", "a", 1, "NX") == "OK"
    assert redis("SET", "a", 2, "NX") is None
    assert redis("SET", "a", 3, "xx", "EX", 100) == "OK"
    assert redis("GET", "a") == b"3"
    assert redis("TTL", "a") == 100
    assert redis("INCR", "a") == 4
    assert redis("TTL", "a") == 100  # INCR leaves it
    assert redis("SET", "a", 5) == "OK"
    assert redis("TTL", "a") == -1  # SET does not
    for options in (("EX",), ("EX", 0), ("EX", "x"), ("NX", "XX"), ("EX", 1, "PX", 1), ("WHAT",)):
        assert error(redis("SET", "a", "changed", *options)).startswith("ERR")
    assert redis("GET", "a") == b"5"


def test_redis_values_end(redis: Client) -> None:
    assert redis("TTL", "a") == -2
    assert redis("EXPIRE", "a", 10) == 0
    assert redis("SET", "a", 1, "PX", 1) == "OK"
    redis("SET", "b", 1)
    assert redis("EXPIRE", "b", 1) == 1
    end = time.monotonic() + LIMIT
    while redis("EXISTS", "a", "b"):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert redis("KEYS", "*") == []
    assert redis("TTL", "a") == -2
    assert redis("SET", "c", 1) == "OK"
    assert redis("EXPIRE", "c", -1) == 1
    assert redis("GET", "c") is None


def test_redis_complains(redis: Client) -> None:
    assert error(redis("NONSENSE")) == "ERR unknown command 'NONSENSE'"
    assert error(redis("a\r\nb")) == "ERR unknown command 'a  b'"
    assert error(redis("GET")) == "ERR wrong number of arguments for 'get' command"
    assert error(redis("PING", 1, 2)) == "ERR wrong number of arguments for 'ping' command"
    redis("SET", "a", "text")
    for value in ("text", "", " 1", "1_0", 2**63 - 1, 2**70):
        redis("SET", "a", value)
        assert error(redis("INCR", "a")).startswith("ERR ")
        assert redis("GET", "a") == str(value).encode()
    assert redis("PING") == "PONG"


@pytest.mark.parametrize(
    "nonsense",
    [b"*x\r\n", b"*-1\r\n", b"*99999999\r\n", b"*1\r\n+PING\r\n", b"*1\r\n$-5\r\n",
     b"*1\r\n$99999999999\r\n", b"x" * 100_000],
)  # fmt: skip
def test_redis_ends_what_is_no_protocol(server: Example, nonsense: bytes) -> None:
    with server.connect() as client:
        client.sendall(encode("PING"))
        client.sendall(nonsense)
        client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
    assert answer.startswith(b"+PONG\r\n-ERR Protocol error: ")


def test_redis_answers_pipelined_commands_in_order(server: Example) -> None:
    stream = b"".join(encode("INCR", "n") + encode("ECHO", "x" * 20) for _ in range(300))
    with Client(server) as whole, Client(server) as slow:
        whole.sock.sendall(stream)
        for i in range(300):
            assert [whole.reply(), whole.reply()] == [i + 1, b"x" * 20]
        # The first is answered although the second has begun and does not go on.
        slow.sock.sendall(encode("PING") + b"*1\r\n$4\r\nPI")
        assert slow.reply() == "PONG"
        slow.sock.sendall(b"NG\r\n")
        assert slow.reply() == "PONG"
        for i in range(0, 3000, 7):
            slow.sock.sendall(stream[i : i + 7])
        assert slow.reply() == 301


def test_redis_takes_what_is_typed(server: Example) -> None:
    nc = tool("nc")
    port = str(server.address[1])
    out = output_of([nc, "-q", "1", "127.0.0.1", port], b"set a 1\n\r\n  incr   a\r\nquit\n")
    assert out == "+OK\r\n:2\r\n+OK\r\n"


def test_redis_with_large_values(redis: Client) -> None:
    data = bytes(range(256)) * 4 * 4096
    assert len(data) == 4 * MEGABYTE
    assert redis("SET", "big", data) == "OK"
    assert redis("GET", "big") == data


def test_redis_increments_of_many_are_atomic(server: Example) -> None:
    clients = [Client(server) for _ in range(20)]
    for _ in range(50):
        for client in clients:
            client.send("INCR", "n")
    seen = [client.reply() for client in clients for _ in range(50)]
    assert sorted(seen) == list(range(1, 1001))
    for client in clients:
        client.__exit__()


def test_redis_cli(server: Example) -> None:
    cli = [tool("redis-cli"), "-p", str(server.address[1])]
    assert output_of([*cli, "set", "greeting", "hello"]) == "OK\n"
    assert output_of([*cli, "get", "greeting"]) == "hello\n"
    assert output_of(cli, b"incr n\nincr n\nkeys g*\nwhat\n").split("\n")[:3] == [
        "1",
        "2",
        "greeting",
    ]


def test_redis_benchmark(server: Example) -> None:
    program = tool("redis-benchmark")
    arguments = ["-p", str(server.address[1]), "-t", "ping,set,get,incr", "-n", "2000", "-q"]
    for pipeline in ("1", "16"):
        out = output_of([program, *arguments, "-P", pipeline])
        for test in ("PING_INLINE", "PING_MBULK", "SET", "GET", "INCR"):
            assert f"{test}:" in out
