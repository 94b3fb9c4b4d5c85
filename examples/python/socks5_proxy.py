"""A SOCKS5 proxy (RFC 1928): clients name a host, and get a connection to it.

    python examples/python/socks5_proxy.py --port 1080
    curl --socks5-hostname 127.0.0.1:1080 https://example.com/

Names are looked up here, and their addresses tried as RFC 8305 has it (happy eyeballs). CONNECT
without a password is all that it knows, so let it listen where only friends are.
"""

import errno
import ipaddress
import socket
import struct
import sys

import example
from proxy import pump

import runloom
from runloom import sync

GREETING_TIMEOUT = 10
CONNECT_TIMEOUT = 10

NO_PASSWORD, NO_METHOD = 0, 0xFF
CONNECT = 1
IPV4, NAME, IPV6 = 1, 3, 4
SUCCEEDED, FAILED, NO_NETWORK, NO_HOST, REFUSED, NO_COMMAND, NO_KIND = 0, 1, 3, 4, 5, 7, 8

CODES = {
    errno.ENETUNREACH: NO_NETWORK,
    errno.EHOSTUNREACH: NO_HOST,
    errno.ETIMEDOUT: NO_HOST,
    errno.ECONNREFUSED: REFUSED,
}


class Hopeless(Exception):
    """The client has gone, or speaks something else: nobody to answer."""


class Refused(Exception):
    """What is answered by a code."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


def read(conn, count):
    data = b""
    while len(data) < count:
        piece = conn.recv(count - len(data))  # no more: what follows is for the server
        if not piece:
            raise Hopeless("the client has gone in the middle of a request")
        data += piece
    return data


def agree(client):
    version, count = read(client, 2)
    if version != 5:
        raise Hopeless(f"SOCKS version {version} is not spoken here")
    if NO_PASSWORD not in read(client, count):
        client.sendall(bytes([5, NO_METHOD]))
        raise Hopeless("the client insists on a password")
    client.sendall(bytes([5, NO_PASSWORD]))


def wanted(client):
    """The host and port that the client asks for."""
    version, command, _, kind = read(client, 4)
    if version != 5:
        raise Hopeless("that is no request")
    if kind == NAME:
        host = read(client, read(client, 1)[0]).decode("latin-1")
    elif kind in (IPV4, IPV6):
        host = str(ipaddress.ip_address(read(client, 4 if kind == IPV4 else 16)))
    else:
        raise Refused(NO_KIND)
    (port,) = struct.unpack("!H", read(client, 2))
    if command != CONNECT:
        raise Refused(NO_COMMAND)
    return host, port


def connect(host, port):
    try:
        return sync.tcp_connect(host, port, timeout=CONNECT_TIMEOUT)
    except (TimeoutError, socket.gaierror):
        raise Refused(NO_HOST) from None
    except OSError as error:
        raise Refused(CODES.get(error.errno, FAILED)) from None
    except ValueError:  # port 0, or a name with a zero byte
        raise Refused(FAILED) from None


def reply(code, address=("0.0.0.0", 0)):
    host = ipaddress.ip_address(address[0].partition("%")[0])
    kind = IPV4 if host.version == 4 else IPV6
    return bytes([5, code, 0, kind]) + host.packed + struct.pack("!H", address[1])


def socks(client):
    try:
        with runloom.timeout(GREETING_TIMEOUT):
            agree(client)
            host, port = wanted(client)
        server = connect(host, port)
    except Refused as error:
        client.sendall(reply(error.code))
        return
    except Hopeless as error:
        print(error, file=sys.stderr)
        return
    with server:
        client.sendall(reply(SUCCEEDED, server.getsockname()))
        sent = sync.fiber(pump, client, server)
        pump(server, client)
        sent.join()


def main():
    options = example.parser(__doc__, port=1080).parse_args()
    example.run(lambda: example.serve(options.host, options.port, socks))


if __name__ == "__main__":
    main()
