"""A chat over a Unix socket, whose members the kernel vouches for.

    python examples/python/unix_chat.py serve /tmp/chat.sock
    python examples/python/unix_chat.py join /tmp/chat.sock      (in other terminals)

Only the server's own user may join: the socket's file has the mode 0600 from its first moment.
Members are called by user and process number, which the kernel tells (SO_PEERCRED), so nobody is
asked and nobody can lie. A server that was killed leaves its file; the next one starts over it.
"""

import argparse
import pwd
import socket
import struct
import sys

import example

import runloom
from runloom import sync

OUTBOX = 64
LINE_LIMIT = 1024


def name_of(conn):
    size = struct.calcsize("3i")
    pid, uid, _gid = struct.unpack(
        "3i", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    try:
        return f"{pwd.getpwuid(uid).pw_name}/{pid}"
    except KeyError:
        return f"{uid}/{pid}"


class Room:
    def __init__(self):
        self.members = {}  # connection: outbox

    def say(self, text, but=None):
        for conn, outbox in list(self.members.items()):
            # Nobody waits for a slow reader: who has too much to read is put out.
            if conn is not but and not outbox.try_send(text.encode() + b"\n"):
                put_out(conn)


def put_out(conn):
    try:
        conn.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has gone already


def write(outbox, conn):
    try:
        for line in outbox:
            conn.sendall(line)
    except OSError:
        put_out(conn)


def talk(room, conn):
    with conn:
        name = name_of(conn)
        outbox = room.members[conn] = sync.Chan(OUTBOX)
        writer = sync.fiber(write, outbox, conn)
        room.say(f"* {name} has joined")
        try:
            with conn.makefile("rb") as file:
                while (line := file.readline(LINE_LIMIT)).endswith(b"\n"):
                    room.say(f"{name}: {line.decode(errors='replace').strip()}", but=conn)
        except OSError:
            pass  # put out, or gone
        finally:
            del room.members[conn]
            room.say(f"* {name} has left")
            outbox.close()
            writer.join()


def serve(path):
    room = Room()
    with sync.unix_listen(path, mode=0o600) as listener:
        print(f"listening on {path}", flush=True)
        while True:
            conn, _ = listener.accept()
            sync.fiber(talk, room, conn)


def hear(conn):
    while data := conn.recv(65536):
        runloom.blocking(print_now, data.decode(errors="replace"))


def print_now(text):
    print(text, end="", flush=True)


def join(path):
    with sync.unix_connect(path, timeout=5) as conn:
        hearing = sync.fiber(hear, conn)
        # Standard input belongs to others as well, so a thread waits for it.
        while line := runloom.blocking(sys.stdin.readline):
            conn.sendall(line.encode())
        conn.shutdown(socket.SHUT_WR)
        hearing.join()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["serve", "join"])
    parser.add_argument("path")
    options = parser.parse_args()
    example.run(lambda: {"serve": serve, "join": join}[options.what](options.path))


if __name__ == "__main__":
    main()
