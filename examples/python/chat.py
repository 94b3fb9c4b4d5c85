"""A chat room: what one says, all others read.

    python examples/python/chat.py --port 7002
    nc 127.0.0.1 7002

or, over TLS,

    python examples/python/chat.py --port 7002 --certfile chat.pem
    openssl s_client -quiet -connect 127.0.0.1:7002

The first line is the name. Each member has a channel that its own fiber sends from; who reads so
slowly that the channel is full is put out, and slows nobody down.
"""

import socket

import example

from runloom import sync

LINE_LIMIT = 1024
OUTBOX = 64


def put_out(conn):
    """Ends both directions, so that whoever reads or writes gets to know."""
    try:
        conn.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has gone already


class Room:
    def __init__(self):
        self.members = {}  # name: (outbox, connection)

    def say(self, text, but=None):
        for name, (outbox, conn) in list(self.members.items()):
            if name != but and not outbox.try_send(text.encode() + b"\n"):
                put_out(conn)

    def join(self, name, outbox, conn):
        if not name or name in self.members:
            return False
        self.members[name] = (outbox, conn)
        self.say(f"* {name} has joined", but=name)
        return True

    def leave(self, name):
        del self.members[name]
        self.say(f"* {name} has left")


def write(outbox, conn):
    try:
        for line in outbox:
            conn.sendall(line)
    except OSError:
        put_out(conn)


def lines(conn):
    """The lines until the end; one that is too long ends it, too."""
    with conn.makefile("rb") as file:
        while (line := file.readline(LINE_LIMIT)).endswith(b"\n"):
            yield line.decode(errors="replace").strip()


def member_of(room):
    def handler(conn):
        spoken = lines(conn)
        conn.sendall(b"your name?\n")
        name = next(spoken, "")
        outbox = sync.Chan(OUTBOX)
        if not room.join(name, outbox, conn):
            conn.sendall(b"* that name is taken, or none\n")
            return
        writer = sync.fiber(write, outbox, conn)
        try:
            outbox.send(f"* welcome, {name}; here are {', '.join(room.members)}\n".encode())
            for line in spoken:
                if line:
                    room.say(f"{name}: {line}", but=name)
        except OSError:
            pass  # put out, or gone
        finally:
            room.leave(name)
            outbox.close()
            writer.join()

    return handler


def main():
    parser = example.parser(__doc__, port=7002)
    example.tls_arguments(parser)
    options = parser.parse_args()
    handler, context = member_of(Room()), example.tls_context(options)
    example.run(lambda: example.serve(options.host, options.port, handler, context=context))


if __name__ == "__main__":
    main()
