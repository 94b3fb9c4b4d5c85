"""What the examples share: the command line, and a server's life from listen to a clean end."""

import argparse
import errno
import signal
import ssl
import sys

import runloom
from runloom import sync

SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def parser(description, port):
    """The arguments of every server here."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--host", default="127.0.0.1", help="where to listen (%(default)s)")
    result.add_argument("--port", type=int, default=port, help="0 is any free port (%(default)s)")
    return result


def listen(host, port, certfile=None, keyfile=None):
    """A listener, with TLS when there is a certificate."""
    if certfile is None:
        return sync.tcp_listen(host, port, backlog=1024)
    return sync.tls_listen(host, port, certfile=certfile, keyfile=keyfile, backlog=1024)


def serve(host, port, handler, **certificate):
    """Calls handler(conn, address) on a fiber of its own for each connection, for ever."""
    with listen(host, port, **certificate) as listener:
        address = listener.getsockname()
        print(f"listening on {address[0]}:{address[1]}", flush=True)
        while True:
            try:
                conn, peer = listener.accept()
            except OSError as error:
                if error.errno not in SHORTAGES:
                    raise
                # Those that are connected go on; the waiting ones are accepted a little later.
                print(f"can't accept: {error}", file=sys.stderr)
                runloom.sleep(0.1)
                continue
            sync.fiber(handle, handler, conn, peer)


def handle(handler, conn, peer):
    """One connection. What goes wrong with it ends it, and nothing else."""
    with conn:
        try:
            handler(conn, peer)
        except (ConnectionResetError, BrokenPipeError):
            pass  # the peer has gone
        except (ConnectionError, TimeoutError, ssl.SSLError) as error:
            print(f"{peer[0]}:{peer[1]}: {error}", file=sys.stderr)


def run(main):
    """Runs main on a fiber until it ends. Ctrl-C and SIGTERM cancel it, and with it all others."""

    def cancellable():
        fiber = sync.current()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: fiber.cancel())
        main()

    try:
        runloom.run(1, cancellable)
    except runloom.Cancelled:
        print("stopped", flush=True)
