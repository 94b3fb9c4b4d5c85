"""An echo server for datagrams: one fiber serves all clients.

    python examples/python/udp_echo.py --port 7000
    nc -u 127.0.0.1 7000

Ctrl-C ends it.
"""

import sys

import example

from runloom import sync


def main():
    options = example.parser(__doc__, port=7000).parse_args()

    def serve():
        with sync.udp_endpoint((options.host, options.port)) as endpoint:
            address = endpoint.getsockname()
            print(f"listening on {address[0]}:{address[1]}", flush=True)
            while True:
                data, peer = endpoint.recvfrom(65536)
                try:
                    endpoint.sendto(data, peer)
                except OSError as error:  # one client can't be reached; the others can
                    print(f"{peer[0]}:{peer[1]}: {error}", file=sys.stderr)

    example.run(serve)


if __name__ == "__main__":
    main()
