"""A server that loses no request when it is told to end.

    python examples/python/graceful_shutdown.py --port 8001 --grace 10
    curl http://127.0.0.1:8001/5        (answers after five seconds)
    kill -TERM PID                      (meanwhile: the answer still comes)

SIGTERM or Ctrl-C closes the listener, once the clients that wait there are accepted, and ends the
connections between two requests. Those in the middle of one get its answer, and those that are new
that of their first one, for at most the time of grace; a second signal ends it all at once. Clients
that waste time are ended by ServerTimeouts.
"""

import sys

import example
import http_requests

import runloom
from runloom import sync


def answer(conn):
    for request in http_requests.requests(conn):
        seconds = request.target.strip("/")
        runloom.sleep(int(seconds) if seconds.isdecimal() else 0)  # the work
        if conn.served.stopping:
            request.keep_alive = False  # the client is told that this is the last answer
        conn.sendall(http_requests.response("200 OK", b"done\n", request))


def main():
    parser = example.parser(__doc__, port=8001)
    parser.add_argument("--grace", type=float, default=10, help="seconds (%(default)s)")
    options = parser.parse_args()

    def serve():
        timeouts = sync.ServerTimeouts(idle=15, head=5)
        with sync.Server(answer, timeouts=timeouts, linger=2) as server:
            address = server.listen(options.host, options.port)
            print(f"listening on {address[0]}:{address[1]}", flush=True)
            server.serve(drain=options.grace)
            stats = server.stats()
        print(f"{stats['accepted']} served, {stats['cancelled']} cancelled", file=sys.stderr)
        print("stopped", flush=True)

    sync.run(serve)


if __name__ == "__main__":
    main()
