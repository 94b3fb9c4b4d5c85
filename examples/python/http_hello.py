"""An HTTP/1.1 server that says hello, with keep-alive and pipelining.

    python examples/python/http_hello.py --port 8000
    curl http://127.0.0.1:8000/

With --certfile it speaks HTTPS. What it knows of HTTP is in http_requests.py.
"""

import example
import http_requests

BODY = b"Hello from runloom!\n"
HELLO = http_requests.response("200 OK", BODY)


def hello(conn):
    for request in http_requests.requests(conn):
        if request.keep_alive and request.method == "GET":
            conn.sendall(HELLO)
        else:
            conn.sendall(http_requests.response("200 OK", BODY, request))


def main():
    parser = example.parser(__doc__, port=8000)
    example.tls_arguments(parser)
    options = parser.parse_args()
    context = example.tls_context(options)
    example.run(lambda: example.serve(options.host, options.port, hello, context=context))


if __name__ == "__main__":
    main()
