"""Peer: TCP echo servers in Python.

Usage: echo_py.py PORT {asyncio-protocol,asyncio-streams,uvloop-protocol,uvloop-streams,gevent}
"""

import asyncio
import resource
import socket
import sys

BACKLOG = 4096
BUFFER = 16384


class EchoProtocol(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


async def echo_stream(reader, writer):
    try:
        while data := await reader.read(BUFFER):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve_asyncio(port, kind):
    if kind == "streams":
        server = await asyncio.start_server(echo_stream, "127.0.0.1", port, backlog=BACKLOG)
    else:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(EchoProtocol, "127.0.0.1", port, backlog=BACKLOG)
    async with server:
        await server.serve_forever()


def serve_gevent(port):
    from gevent.server import StreamServer

    def echo(sock, _address):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := sock.recv(BUFFER):
                sock.sendall(data)
        except OSError:
            pass
        finally:
            sock.close()

    StreamServer(("127.0.0.1", port), echo, backlog=BACKLOG).serve_forever()


def main():
    port, kind = int(sys.argv[1]), sys.argv[2]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if kind == "gevent":
        serve_gevent(port)
        return
    library, style = kind.split("-")
    if library == "uvloop":
        import uvloop

        uvloop.run(serve_asyncio(port, style))
    else:
        asyncio.run(serve_asyncio(port, style))


if __name__ == "__main__":
    main()
