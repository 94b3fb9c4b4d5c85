"""What the examples share: the command line, and a program's life until it is told to end."""

import argparse
import signal
import ssl

import runloom
import runloom.tls
from runloom import sync


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


def serve(host, port, handler, *, context=None, drain=0, **options):
    """Calls handler(conn) on a fiber of its own for each connection, until SIGTERM or Ctrl-C; then
    those that run have `drain` seconds. Options are those of sync.Server."""
    with sync.Server(handler, context=context, **options) as server:
        address = server.listen(host, port)
        print(f"listening on {address[0]}:{address[1]}", flush=True)
        server.serve(drain=drain)
    print("stopped", flush=True)


def run(main):
    """Runs main on a fiber until it ends. Ctrl-C and SIGTERM cancel it, and with it all others;
    a server handles them itself."""

    def cancellable():
        fiber = sync.current()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: fiber.cancel())
        main()

    try:
        runloom.run(1, cancellable)
    except runloom.Cancelled:
        print("stopped", flush=True)
