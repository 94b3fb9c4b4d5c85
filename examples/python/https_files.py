"""A server of the files below a directory, over HTTPS or HTTP.

    python examples/python/https_files.py --port 8443 --certfile cert.pem --keyfile key.pem /srv/www
    curl --cacert cert.pem https://localhost:8443/index.html

Without --certfile it speaks HTTP. Files are sent by sendfile(); with TLS they are read and
encrypted. Looking for a file may wait for a disk, so a thread of the pool does it, and other
connections go on. Nothing outside of the directory is served, whatever `..` and links say. The
server bounds how long a client may take for a request, and for reading its answer.
"""

import mimetypes
import os
import stat
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import example
import http_requests

import runloom
from runloom import sync


def find(root, target):
    """The file that a target names, or None. It waits for the disk."""
    try:
        path = unquote(urlsplit(target).path, errors="strict")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not path.startswith("/") or ".." in parts:
            return None
        found = root.joinpath(*parts).resolve(strict=True)  # follows links
        if found.is_dir():
            found = (found / "index.html").resolve(strict=True)
        return found if found.is_relative_to(root) and found.is_file() else None
    except (OSError, ValueError):  # not there, or no name at all
        return None


def send_file(conn, path, request):
    """False when the file shrank under us, so that the client has to see a broken response."""
    with sync.open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(path)  # it was one when it was found
        size = status.st_size
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        conn.sendall(http_requests.head("200 OK", size, kind=kind, keep_alive=request.keep_alive))
        if request.method == "HEAD" or size == 0:
            return True
        return conn.sendfile(file, 0, size) == size


def files_of(root):
    def handler(conn):
        for request in http_requests.requests(conn):
            if request.method not in ("GET", "HEAD"):
                text = b"only GET and HEAD\n"
                conn.sendall(http_requests.response("405 Method Not Allowed", text, request))
                continue
            path = runloom.blocking(find, root, request.target)
            try:
                if path is None:
                    raise FileNotFoundError
                if not send_file(conn, path, request):
                    print(f"{path} became shorter", file=sys.stderr)
                    return
            except (FileNotFoundError, PermissionError):
                conn.sendall(http_requests.response("404 Not Found", b"not here\n", request))

    return handler


def main():
    parser = example.parser(__doc__, port=8443)
    example.tls_arguments(parser)
    parser.add_argument("directory", type=Path, nargs="?", default=".", help="(%(default)s)")
    options = parser.parse_args()
    if not options.directory.is_dir():
        parser.error(f"{options.directory} is no directory")
    handler, context = files_of(options.directory.resolve()), example.tls_context(options)
    example.run(lambda: example.serve(options.host, options.port, handler, context=context))


if __name__ == "__main__":
    main()
