"""What the examples share: the command line, and a server's life from listen to a clean end."""

import argparse
import errno
import signal
import ssl
import sys

import runloom
import runloom.tls
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


def tls_arguments(parser, required=False):
    """The arguments of a server that can speak TLS."""
    parser.add_argument(
        "--certfile",
        required=required,
        help="PEM file with the certificate and its chain" + ("" if required else ": speaks TLS"),
    )
    parser.add_argument("--keyfile", help="its private key, when it is not in the same file")


def tls_context(options):
    """What tls_arguments() were given, as a context; None is no TLS."""
    if options.certfile is None:
        return None
    context = runloom.tls.Context(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certfile, options.keyfile)
    return context


def listen(host, port, context=None):
    """A listener, with TLS when there is a context."""
    if context is None:
        return sync.tcp_listen(host, port, backlog=1024)
    return sync.tls_listen(host, port, context=context, backlog=1024)


def serve(host, port, handler, context=None):
    """Calls handler(conn, address) on a fiber of its own for each connection, for ever."""
    with listen(host, port, context) as listener:
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
