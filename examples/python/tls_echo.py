"""An echo server over TLS, whose certificate can be renewed while it runs.

    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 \\
        -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem
    python examples/python/tls_echo.py --port 7443 --certfile cert.pem --keyfile key.pem
    openssl s_client -quiet -CAfile cert.pem -verify_return_error -connect localhost:7443

SIGHUP reads the certificate again: connections that begin later get the new one. With --client-ca
only those may talk who have a certificate of that authority.
"""

import signal
import ssl
import sys

import example


def echo(conn):
    peer = conn.served.peer
    print(f"{peer[0]}:{peer[1]}: {conn.version()}, {name_of(conn)}", file=sys.stderr)
    while data := conn.recv(65536):
        conn.sendall(data)


def name_of(conn):
    """Whom the client's certificate names."""
    certificate = conn.getpeercert()
    if not certificate:
        return "a stranger"
    return ", ".join(name for _, name in certificate.get("subjectAltName", ())) or "nobody"


def renew(context, options):
    try:
        context.load_cert_chain(options.certfile, options.keyfile)
        print("the certificate was read again", file=sys.stderr)
    except (OSError, ssl.SSLError) as error:  # the old one stays
        print(f"can't read the certificate: {error}", file=sys.stderr)


def main():
    parser = example.parser(__doc__, port=7443)
    example.tls_arguments(parser, required=True)
    parser.add_argument("--client-ca", help="PEM file of the authority of all clients")
    options = parser.parse_args()
    context = example.tls_context(options)
    if options.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(options.client_ca)
    signal.signal(signal.SIGHUP, lambda *_: renew(context, options))
    example.run(lambda: example.serve(options.host, options.port, echo, context=context))


if __name__ == "__main__":
    main()
