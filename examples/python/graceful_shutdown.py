"""A server that loses no request when it is told to end.

    python examples/python/graceful_shutdown.py --port 8001 --grace 10
    curl http://127.0.0.1:8001/5        (answers after five seconds)
    kill -TERM PID                      (meanwhile: the answer still comes)

SIGTERM or Ctrl-C closes the listener, so that a load balancer sends others elsewhere, and ends the
connections between two requests. Those in the middle of one get its answer, for at most the time of
grace; a second signal ends it all at once.
"""

import signal
import socket
import sys
import traceback

import example
import http_requests

import runloom
from runloom import sync


class Server:
    def __init__(self, listener):
        self.listener = listener
        self.stopping = sync.Event()
        self.idle = set()  # connections between two requests

    def serve(self, grace):
        with sync.JoinSet() as connections:
            acceptor = sync.fiber(self.accept, connections)
            self.stopping.wait()
            acceptor.cancel()
            self.listener.close()
            for conn in list(self.idle):
                conn.shutdown(socket.SHUT_RD)  # its recv() comes to the end
            print(f"finishing {len(connections)} connections", file=sys.stderr, flush=True)
            if not connections.wait(grace):
                print(f"gave {len(connections)} up", file=sys.stderr, flush=True)
                connections.cancel()

    def stop(self):
        self.stopping.set()

    def accept(self, connections):
        while True:
            try:
                conn, peer = self.listener.accept()
            except OSError as error:
                if error.errno not in example.SHORTAGES:
                    raise
                runloom.sleep(0.1)
                continue
            connections.spawn(self.handle, conn, peer)

    def handle(self, conn, peer):
        try:
            example.handle(self.answer, conn, peer)
        except Exception:  # a fault of one handler must not end the others
            traceback.print_exc()
        finally:
            self.idle.discard(conn)

    def answer(self, conn, _peer):
        self.idle.add(conn)
        for request in http_requests.requests(conn):
            self.idle.discard(conn)
            seconds = request.target.strip("/")
            runloom.sleep(int(seconds) if seconds.isdecimal() else 0)  # the work
            last = self.stopping.is_set()
            request.keep_alive = request.keep_alive and not last
            conn.sendall(http_requests.response("200 OK", b"done\n", request))
            if last:
                return
            self.idle.add(conn)


def main():
    parser = example.parser(__doc__, port=8001)
    parser.add_argument("--grace", type=float, default=10, help="seconds (%(default)s)")
    options = parser.parse_args()

    def serve():
        main_fiber = sync.current()
        with example.listen(options.host, options.port) as listener:
            server = Server(listener)

            def stop(*_):
                if server.stopping.is_set():
                    main_fiber.cancel()  # and with it all others
                server.stop()

            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop)
            address = listener.getsockname()
            print(f"listening on {address[0]}:{address[1]}", flush=True)
            server.serve(options.grace)
            print("stopped", flush=True)

    example.run(serve)


if __name__ == "__main__":
    main()
