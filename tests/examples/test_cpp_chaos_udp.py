"""Each C++ program of datagrams where they are lost, doubled and reordered."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from chaos_relay import ChaosRelay
from example_process import until
from test_cpp_udp_examples import (
    Server,
    answered,
    client,
    code,
    forwarder,
    ping,
    python_server,
    query,
)

HUBS = pytest.mark.parametrize("hubs", [1, 2])


@HUBS
def test_udp_echo(hubs: int) -> None:
    """All is echoed in the end, once for each time that it comes, and nothing else."""

    def one_client(number: int) -> None:
        with client(relay.address) as sock:
            sock.settimeout(0.05)
            missing = {f"{number}:{i}".encode() * (i + 1) for i in range(50)}
            every = frozenset(missing)
            for _ in range(200):
                for each in missing:
                    sock.send(each)
                try:
                    while missing:
                        back = sock.recv(65536)
                        assert back in every, f"wrong: {back!r}"
                        missing.discard(back)
                except TimeoutError:
                    continue
                return
            raise AssertionError(f"{len(missing)} were never echoed")

    with Server("udp_echo", hubs=hubs) as server, ChaosRelay(server.address) as relay:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one_client, range(16)))
        assert min(relay.tally.lost, relay.tally.doubled, relay.tally.late) > 0


def test_udp_ping() -> None:
    """What it tells is what was done to its datagrams."""
    with Server("udp_echo") as server, ChaosRelay(server.address) as relay:
        done = ping(relay.address, "400", "1")
        tally = relay.tally
    assert done.returncode == 1, done.stderr
    found = re.match(
        r"400 sent, (\d+) received, ([\d.]+)% lost, (\d+) doubled, (\d+) out of order\n",
        done.stdout,
    )
    assert found is not None, done.stdout
    received, doubled, reordered = int(found[1]), int(found[3]), int(found[4])
    # A datagram or its echo that is lost may have a double that is not.
    assert 400 - tally.lost <= received < 400
    assert 0 < doubled <= 2 * tally.doubled
    assert 0 < reordered <= 2 * tally.late
    assert float(found[2]) == pytest.approx((400 - received) / 4, abs=0.06)


@HUBS
def test_dns_forwarder(hubs: int) -> None:
    """On both sides of it. Whoever asks until he is answered gets the right answer."""
    with (
        python_server(lambda data: [answered(data)]) as names,
        ChaosRelay(names) as behind,
        forwarder(behind.address, hubs) as server,
        ChaosRelay(server.address) as before,
    ):
        at_first = server.descriptors()

        def one_client(number: int) -> None:
            with client(before.address) as sock:
                sock.settimeout(0.2)
                asked = query(f"name{number}.example", number)
                for _ in range(100):
                    sock.send(asked)
                    try:
                        while (back := sock.recv(4096))[:2] == asked[:2] and code(back) == 2:
                            pass  # it could not reach the server
                    except TimeoutError:
                        continue
                    assert back == answered(asked), f"wrong: {back!r}"
                    return
                raise AssertionError("never answered")

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one_client, range(100)))
        assert min(behind.tally.lost, behind.tally.doubled, before.tally.lost) > 0
        until(lambda: server.descriptors() <= at_first + 8, "closing the queries' sockets")
