"""An echo server: each connection is a loop that reads like blocking code.

    python examples/python/echo.py --port 7000
    nc 127.0.0.1 7000

Ctrl-C ends it, and its connections.
"""

import example


def echo(conn):
    while data := conn.recv(65536):
        conn.sendall(data)


def main():
    options = example.parser(__doc__, port=7000).parse_args()
    example.run(lambda: example.serve(options.host, options.port, echo))


if __name__ == "__main__":
    main()
