"""An HTTP/1.1 server that says hello, with keep-alive and pipelining.

    python examples/python/http_hello.py --port 8000
    curl http://127.0.0.1:8000/

With --certfile it speaks HTTPS.

The protocol is done by hand, just as far as curl, wrk and browsers need it.
"""

import example

HEAD_LIMIT = 16 * 1024
BODY = b"Hello from runloom!\n"


class BadRequest(Exception):
    pass


def response(status, body, *, keep_alive=True, head_only=False):
    head = (
        f"HTTP/1.1 {status}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
    ).encode()
    return head if head_only else head + body


HELLO = response("200 OK", BODY)


def parse(head):
    """The method, whether the connection stays, and the size of the body that follows."""
    lines = head.decode("latin-1").split("\r\n")
    try:
        method, _target, version = lines[0].split(" ")
    except ValueError:
        raise BadRequest("the first line is no request") from None
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(f"{version} is not spoken here")
    fields = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise BadRequest(f"no header: {line!r}")
        fields[name.lower()] = value.strip()
    if "transfer-encoding" in fields:
        raise BadRequest("bodies need a Content-Length")
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise BadRequest("Content-Length is no number")
    connection = fields.get("connection", "").lower()
    keep_alive = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
    return method, keep_alive, int(length)


def hello(conn, _peer):
    buffer = b""
    try:
        while True:
            end = buffer.find(b"\r\n\r\n")
            while end < 0:
                if len(buffer) > HEAD_LIMIT:
                    raise BadRequest("the header is too long")
                data = conn.recv(65536)
                if not data:
                    return
                buffer += data
                end = buffer.find(b"\r\n\r\n")
            method, keep_alive, length = parse(buffer[:end])
            buffer = buffer[end + 4 :]
            while len(buffer) < length:  # the body is read and dropped
                length -= len(buffer)
                buffer = conn.recv(65536)
                if not buffer:
                    return
            buffer = buffer[length:]
            if keep_alive and method == "GET":
                conn.sendall(HELLO)
                continue
            head_only = method == "HEAD"
            conn.sendall(response("200 OK", BODY, keep_alive=keep_alive, head_only=head_only))
            if not keep_alive:
                return
    except BadRequest as error:
        conn.sendall(response("400 Bad Request", f"{error}\n".encode(), keep_alive=False))


def main():
    parser = example.parser(__doc__, port=8000)
    parser.add_argument("--certfile", help="speak HTTPS, with this certificate and its chain")
    parser.add_argument("--keyfile", help="its private key, when it is not in the same file")
    options = parser.parse_args()
    certificate = {"certfile": options.certfile, "keyfile": options.keyfile}
    example.run(lambda: example.serve(options.host, options.port, hello, **certificate))


if __name__ == "__main__":
    main()
