"""A TCP proxy that treats connections badly: it stalls, cuts, resets, trickles and reorders them.

What it does to a connection is chosen by a seed and told by `fault_of`, so that a test can ask for
everything of the connections that were left alone, and for no wrong byte on the others.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import threading
from dataclasses import dataclass
from types import TracebackType

from example_process import until

KINDS = ("none", "none", "stall", "cut", "reset", "trickle")
PAUSE = 0.2  # seconds that a stall lasts


@dataclass
class Fault:
    kind: str
    towards_server: bool = True
    after: int = 0  # bytes in that direction


def seed() -> int:
    value = int(os.environ.get("RUNLOOM_SEED", random.randrange(1 << 31)))
    print(f"RUNLOOM_SEED={value}")
    return value


class ChaosProxy:
    """Runs on a thread of its own, from `with` to its end."""

    def __init__(self, target: int | str, *, batch: int = 4, biggest: int = 20_000) -> None:
        self._target = target  # a port of the loopback, or the path of a Unix socket
        self._batch = batch  # connections that are held back, to be made in another order
        self._biggest = biggest
        self._random = random.Random(seed())
        self._faults: dict[int, Fault] = {}
        self._waiting: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself has weak ones only
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self.port = 0

    def __enter__(self) -> ChaosProxy:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._loop.close()

    def fault_of(self, client: socket.socket) -> Fault:
        port = client.getsockname()[1]
        until(lambda: port in self._faults, "accepting in the proxy")
        return self._faults[port]

    def last_fault(self) -> Fault:
        """What it does to the connection that came last."""
        return list(self._faults.values())[-1]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection("127.0.0.1", self._target)

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _take_turn(self) -> None:
        """Holds a connection until there is a batch, or for a moment; a batch goes in any order."""
        turn = asyncio.Event()
        self._waiting.append(turn)
        if len(self._waiting) >= self._batch:
            waiting, self._waiting = self._waiting, []
            self._random.shuffle(waiting)
            for each in waiting:
                each.set()
        try:
            await asyncio.wait_for(turn.wait(), 0.02)
        except TimeoutError:
            if turn in self._waiting:
                self._waiting.remove(turn)

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        fault = Fault(
            self._random.choice(KINDS),
            self._random.random() < 0.5,
            self._random.randrange(self._random.choice((1, 10, 100, self._biggest))),
        )
        self._faults[back.get_extra_info("peername")[1]] = fault
        writers = [back]
        try:
            await self._take_turn()
            server, forth = await self._connect()
            writers.append(forth)
            both = [
                asyncio.ensure_future(self._pump(client, forth, fault, fault.towards_server)),
                asyncio.ensure_future(self._pump(server, back, fault, not fault.towards_server)),
            ]
            try:
                await asyncio.gather(*both)
            finally:
                for each in both:
                    each.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except (OSError, EOFError):
            if fault.kind == "reset":
                for writer in writers:
                    raw = writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            for writer in writers:
                writer.transport.abort() if fault.kind == "reset" else writer.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, fault: Fault, hit: bool
    ) -> None:
        seen = 0
        while piece := await source.read(4096):
            if hit and fault.kind != "none" and seen + len(piece) > fault.after:
                await self._hurt(piece, sink, fault, max(0, fault.after - seen))
            else:
                sink.write(piece)
                await sink.drain()
            seen += len(piece)
        sink.write_eof()

    async def _hurt(
        self, piece: bytes, sink: asyncio.StreamWriter, fault: Fault, good: int
    ) -> None:
        sink.write(piece[:good])
        rest = piece[good:]
        if fault.kind in ("cut", "reset"):
            await sink.drain()
            raise EOFError(fault.kind)
        if fault.kind == "stall":
            await asyncio.sleep(PAUSE)
            fault.after = 1 << 62  # once
        else:
            for byte in rest[:100]:
                sink.write(bytes([byte]))
                await asyncio.sleep(0)
            rest = rest[100:]
        sink.write(rest)
        await sink.drain()
