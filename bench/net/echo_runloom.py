"""runloom.sync TCP echo: one fiber a connection, code that reads like blocking code.

Usage: echo_runloom.py PORT
"""

import resource
import socket
import sys

import runloom
from runloom import sync

BUFFER = 16384


def echo(conn):
    try:
        while data := conn.recv(BUFFER):
            conn.sendall(data)
    except OSError:
        pass
    finally:
        conn.close()


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = sync.tcp_listen("127.0.0.1", int(sys.argv[1]), backlog=4096)
    while True:
        conn, _address = listener.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sync.fiber(echo, conn)


if __name__ == "__main__":
    runloom.run(1, main)
