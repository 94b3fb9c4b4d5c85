"""Finds the open TCP ports of a host: many connects at once, each with a timeout.

    python examples/python/port_scanner.py 127.0.0.1
    python examples/python/port_scanner.py 127.0.0.1 --ports 20-25,80,443,8000-9000

Workers take ports from one channel and put what they found into another. A name is looked up by
each connect, which tries all its addresses as RFC 8305 has it (happy eyeballs): a port is open when
one of them answers.
"""

import argparse
import sys

import example

from runloom import sync


def ports_of(text):
    """ "20-25,80" as a list of numbers."""
    result = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            numbers = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is no port") from None
        if not numbers or numbers[0] < 1 or numbers[-1] > 65535:
            raise argparse.ArgumentTypeError(f"{part!r} is no range within 1-65535")
        result.extend(numbers)
    return result


def work(host, timeout, ports, results):
    for port in ports:
        try:
            sync.tcp_connect(host, port, timeout=timeout).close()
            results.send((port, True))
        except OSError:  # refused, or silent until the timeout
            results.send((port, False))


def scan(host, wanted, timeout, workers):
    """The open ones, in the order in which they were found."""
    ports = sync.Chan(0)
    results = sync.Chan(workers)
    for _ in range(min(workers, len(wanted))):
        sync.fiber(work, host, timeout, ports, results)

    def feed():
        for port in wanted:
            ports.send(port)
        ports.close()

    sync.fiber(feed)
    for _ in wanted:
        (port, is_open), _ = results.recv()
        if is_open:
            yield port


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("host")
    parser.add_argument("--ports", type=ports_of, default="1-1024", help="(%(default)s)")
    parser.add_argument("--timeout", type=float, default=1.0, help="seconds (%(default)s)")
    parser.add_argument("--workers", type=int, default=200, help="at once (%(default)s)")
    options = parser.parse_args()

    def run():
        try:
            sync.getaddrinfo(options.host, None)
        except OSError as error:  # said once, not for each port
            sys.exit(f"{options.host}: {error}")
        found = 0
        for port in scan(options.host, options.ports, options.timeout, max(options.workers, 1)):
            found += 1
            print(f"{port} open", flush=True)
        print(f"{found} of {len(options.ports)} ports open", flush=True)

    example.run(run)


if __name__ == "__main__":
    main()
