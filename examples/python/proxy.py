"""A TCP proxy: two fibers a connection, one for each direction.

    python examples/python/proxy.py --port 7001 example.com:80
    curl -H "Host: example.com" http://127.0.0.1:7001/

When one side has ended its direction, so does the proxy towards the other (half-close). A side
that reads slowly slows the other one down, because sendall() waits: nothing piles up here.
"""

import socket
import sys

import example

from runloom import sync


def pump(source, sink):
    """Copies one direction to its end. If it breaks, the other direction is of no use either."""
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


def proxy_to(host, port):
    def handler(client):
        try:
            server = sync.tcp_connect(host, port, timeout=10)
        except OSError as error:
            print(error, file=sys.stderr)
            return
        with server:
            sent = sync.fiber(pump, client, server)
            pump(server, client)
            sent.join()

    return handler


def main():
    parser = example.parser(__doc__, port=7001)
    parser.add_argument("upstream", metavar="HOST:PORT", help="where connections go")
    options = parser.parse_args()
    host, colon, port = options.upstream.rpartition(":")
    if not colon or not port.isdecimal():
        parser.error(f"{options.upstream!r} is not HOST:PORT")
    handler = proxy_to(host.strip("[]"), int(port))
    example.run(lambda: example.serve(options.host, options.port, handler))


if __name__ == "__main__":
    main()
