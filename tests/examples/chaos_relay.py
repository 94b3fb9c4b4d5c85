"""A relay of datagrams that treats them as a bad network does: it loses, doubles and reorders them,
in both directions."""

from __future__ import annotations

import random
import select
import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType

from chaos_proxy import seed

Address = tuple[str, int]
HOLD = 0.01  # seconds after which a datagram that was held back goes all the same


@dataclass
class Tally:
    passed: int = 0
    lost: int = 0
    doubled: int = 0
    late: int = 0


@dataclass
class Way:
    """From one socket to an address."""

    out: socket.socket
    to: Address
    held: list[bytes] = field(default_factory=list)


class ChaosRelay:
    """Runs on a thread of its own, from `with` to its end. Each client has a port of its own
    towards the target, as behind a NAT."""

    def __init__(self, target: Address, *, rate: float = 0.1) -> None:
        self._target = target
        self._rate = rate  # the part of the datagrams that each fault hits
        self._random = random.Random(seed())
        self._front = socket.socket(type=socket.SOCK_DGRAM)
        self._front.bind(("127.0.0.1", 0))
        self.address: Address = self._front.getsockname()
        self._clients: dict[Address, Way] = {}  # towards the target
        self._back: dict[socket.socket, Way] = {}  # towards the client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.tally = Tally()

    def __enter__(self) -> ChaosRelay:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(10)
        assert not self._thread.is_alive()
        for sock in (self._front, *self._back):
            sock.close()

    def _run(self) -> None:
        while not self._over.is_set():
            ready, _, _ = select.select([self._front, *self._back], [], [], HOLD)
            for sock in ready:
                try:
                    data, peer = sock.recvfrom(65536)
                except ConnectionRefusedError:  # what was sent before found nobody
                    continue
                self._treat(
                    data, self._towards_target(peer) if sock is self._front else self._back[sock]
                )
            if not ready:
                for way in (*self._clients.values(), *self._back.values()):
                    self._release(way)

    def _towards_target(self, client: Address) -> Way:
        if client not in self._clients:
            sock = socket.socket(type=socket.SOCK_DGRAM)
            sock.bind(("127.0.0.1", 0))
            self._clients[client] = Way(sock, self._target)
            self._back[sock] = Way(self._front, client)
        return self._clients[client]

    def _treat(self, data: bytes, way: Way) -> None:
        fate = self._random.random() / self._rate
        if fate < 1:
            self.tally.lost += 1
        elif fate < 2:
            self.tally.late += 1
            way.held.append(data)
        else:
            if fate < 3:
                self.tally.doubled += 1
                self._send(data, way)
            self.tally.passed += 1
            self._send(data, way)
            self._release(way)  # behind one that came later

    def _release(self, way: Way) -> None:
        for data in way.held:
            self._send(data, way)
        way.held.clear()

    @staticmethod
    def _send(data: bytes, way: Way) -> None:
        way.out.sendto(data, way.to)
