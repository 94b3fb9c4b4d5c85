"""Addresses that mean something only on one link: T40.

In a process with a network namespace of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# Gives lo an address that needs a scope, in a network namespace of this process's own.
LINK_LOCAL = """
    import fcntl, socket, struct, time
    lo = socket.if_nametoindex("lo")
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
        ip = socket.inet_pton(socket.AF_INET6, "fe80::7")
        fcntl.ioctl(control, 0x8916, struct.pack("16sIi", ip, 64, lo))  # SIOCSIFADDR
    from runloom import sync

    def main():
        for _ in range(5000):  # a new address can be used a little later
            try:
                listener = sync.tcp_listen("fe80::7%lo", 0)
                break
            except OSError:
                sync.sleep(0.001)
        address = listener.getsockname()
        assert address[3] == lo, address

        def serve():
            for _ in range(3):
                connection, peer = listener.accept()
                assert peer[0].startswith("fe80::7") and peer[3] == lo, peer
                connection.sendall(b"x")
                connection.close()

        sync.fiber(serve)
        by_tuple = sync.Socket(socket.AF_INET6)
        by_tuple.connect(address)
        clients = [
            by_tuple,
            sync.tcp_connect("fe80::7%lo", address[1]),
            sync.tcp_connect(f"fe80::7%{lo}", address[1]),
        ]
        for client in clients:
            assert client.recv(10) == b"x"
            assert client.getpeername() == address
            client.close()
        print("connected")

    sync.run(main)
"""


def test_t40_scope_ids_survive_every_hop() -> None:
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, "-c", textwrap.dedent(LINK_LOCAL)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if "unshare" in done.stderr:
        pytest.skip(f"no network namespace to be had: {done.stderr}")
    assert (done.stdout, done.stderr) == ("connected\n", ""), done
