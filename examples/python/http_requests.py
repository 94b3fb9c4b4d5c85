"""As much of HTTP/1.1 as the examples need for curl, wrk and browsers: requests one after the
other on a connection, pipelined ones too, and responses with a length. Bodies are read and dropped.
"""

from dataclasses import dataclass

HEAD_LIMIT = 16 * 1024


class BadRequest(Exception):
    pass


@dataclass
class Request:
    method: str
    target: str  # as it was sent
    keep_alive: bool
    body_length: int


def parse(head):
    """The request of a head, without the empty line at its end."""
    lines = head.decode("latin-1").split("\r\n")
    try:
        method, target, version = lines[0].split(" ")
    except ValueError:
        raise BadRequest("the first line is no request") from None
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(f"{version} is not spoken here")
    fields = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise BadRequest(f"no header: {line!r}")
        name = name.lower()
        if name in fields and name == "content-length":
            raise BadRequest("two lengths")
        fields[name] = value.strip()
    if "transfer-encoding" in fields:
        raise BadRequest("bodies need a Content-Length")
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdecimal() and len(length) < 20):
        raise BadRequest("Content-Length is no number")
    connection = fields.get("connection", "").lower()
    keep_alive = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
    return Request(method, target, keep_alive, int(length))


def requests(conn):
    """The requests of a connection, until one of them or the client ends it. A broken one is
    answered here, and is the last. The server hears where we stand: it bounds how long a client may
    take for a request, and ends connections that wait for a further one when it is to stop."""
    buffer = b""
    try:
        while True:
            conn.served.await_request(begun=bool(buffer))
            while (end := buffer.find(b"\r\n\r\n")) < 0:
                if len(buffer) > HEAD_LIMIT:
                    raise BadRequest("the header is too long")
                data = conn.recv(65536)
                if not data:
                    return
                buffer += data
            conn.served.head_done()
            request = parse(buffer[:end])
            buffer = buffer[end + 4 :]
            left = request.body_length
            while len(buffer) < left:
                left -= len(buffer)
                buffer = conn.recv(65536)
                if not buffer:
                    return
            buffer = buffer[left:]
            yield request
            if not request.keep_alive:
                return
    except BadRequest as error:
        conn.sendall(response("400 Bad Request", f"{error}\n".encode(), keep_alive=False))


def head(status, length, *, kind="text/plain; charset=utf-8", keep_alive=True):
    return (
        f"HTTP/1.1 {status}\r\n"
        f"Content-Type: {kind}\r\n"
        f"Content-Length: {length}\r\n"
        f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
    ).encode()


def response(status, body, request=None, *, keep_alive=True):
    """A whole response; to a HEAD request it is without the body."""
    if request is not None:
        keep_alive = request.keep_alive
    first = head(status, len(body), keep_alive=keep_alive)
    return first if request is not None and request.method == "HEAD" else first + body
