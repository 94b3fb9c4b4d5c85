"""TLS: contexts, after those of the ssl module, and the connections that they make.

    import runloom.sync as sync
    import runloom.tls

    context = runloom.tls.create_default_context(cafile="ca.pem")
    with sync.tls_connect("example.org", 443, context=context) as conn:
        conn.sendall(b"GET / HTTP/1.0\\r\\nHost: example.org\\r\\n\\r\\n")

Errors are those of the ssl module (SSLError and its subclasses). Constants (PROTOCOL_TLS_CLIENT,
CERT_REQUIRED, TLSVersion, Purpose, ...) are its own, and are used from there.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from runloom._unique import Unique
from runloom_c import TLSSession, TLSSocket, _tls_context, _tls_wrap

if TYPE_CHECKING:
    from runloom_c import Socket, _TLSContext

    _Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
    _Password: TypeAlias = str | bytes | bytearray | Callable[[], str | bytes | bytearray]
    SNICallback: TypeAlias = Callable[[TLSSocket, str | None, "Context"], int | None]

__all__ = [
    "DEFAULT_HANDSHAKE_TIMEOUT",
    "Context",
    "TLSSession",
    "TLSSocket",
    "create_default_context",
]

# Seconds that a client has for its handshake with a server of ours.
DEFAULT_HANDSHAKE_TIMEOUT: Final = 10.0

_VERSIONS = {ssl.TLSVersion.TLSv1_2: 0, ssl.TLSVersion.TLSv1_3: 1}
_CERTIFICATES = {ssl.CERT_NONE: 0, ssl.CERT_OPTIONAL: 1, ssl.CERT_REQUIRED: 2}
_OPTIONS = ssl.OP_ALL | ssl.OP_NO_SSLv3 | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
_FLAGS = ssl.VerifyFlags.VERIFY_DEFAULT | ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST


class Context(Unique):
    """What connections share: certificates, whom to trust, versions, protocols, sessions.

    Shaped after ssl.SSLContext. The protocol is ssl.PROTOCOL_TLS_CLIENT, which verifies the server
    and its name, or ssl.PROTOCOL_TLS_SERVER. TLS 1.2 and 1.3 are spoken. A change counts for the
    connections that begin later. One context may be used by all fibers and threads.
    """

    __slots__ = (
        "__weakref__",
        "_add_roots",
        "_alpn",
        "_alpn_required",
        "_built",
        "_ca_path",
        "_ca_pem",
        "_changes",
        "_check_hostname",
        "_ciphers",
        "_ciphersuites",
        "_groups",
        "_identities",
        "_maximum",
        "_minimum",
        "_options",
        "_protocol",
        "_sni_callback",
        "_verify_mode",
    )

    def __init__(self, protocol: int = ssl.PROTOCOL_TLS_CLIENT) -> None:
        if protocol not in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
            raise ValueError(
                "protocol must be ssl.PROTOCOL_TLS_CLIENT or ssl.PROTOCOL_TLS_SERVER, "
                f"not {protocol!r}"
            )
        self._protocol = ssl._SSLMethod(protocol)
        client = protocol == ssl.PROTOCOL_TLS_CLIENT
        self._verify_mode = ssl.CERT_REQUIRED if client else ssl.CERT_NONE
        self._check_hostname = client
        self._identities: list[tuple[bytes, bytes, Callable[[], bytes] | None]] = []
        self._ca_pem = b""
        self._ca_path: list[bytes] = []
        self._add_roots = False
        self._minimum = ssl.TLSVersion.TLSv1_2
        self._maximum = ssl.TLSVersion.TLSv1_3
        self._ciphers = ""
        self._ciphersuites = ""
        self._groups = ""
        self._alpn: list[bytes] = []
        self._alpn_required = True
        self._options = ssl.Options(_OPTIONS)
        self._sni_callback: SNICallback | None = None
        self._built: _TLSContext | None = None
        self._changes = 0

    def __repr__(self) -> str:
        return f"<runloom.tls.Context {self._protocol.name}>"

    # ---- who we are ----

    def load_cert_chain(
        self, certfile: _Path, keyfile: _Path | None = None, password: _Password | None = None
    ) -> None:
        """Load our certificate with its chain, and its private key: from PEM files.

        The key may stand in the certificates' file. The password, or the callable that is asked for
        it, is used when the key is encrypted. Called again it adds a certificate for a key of
        another kind, and replaces one for a key of the same kind.
        """
        certificate = _read(certfile)
        key = b"" if keyfile is None else _read(keyfile)
        identity = (certificate, key, None if password is None else _Password_of(password))
        try:
            _tls_context(True, {"identities": [identity]})
        except ssl.SSLError as error:
            where = os.fsdecode(certfile)
            if keyfile is not None:
                where += ", " + os.fsdecode(keyfile)
            error.strerror = f"{where}: {error.strerror}"
            error.args = (error.errno, error.strerror)
            raise
        self._identities.append(identity)
        self._changed()

    # ---- whom to trust ----

    def load_verify_locations(
        self,
        cafile: _Path | None = None,
        capath: _Path | None = None,
        cadata: str | bytes | bytearray | None = None,
    ) -> None:
        """Trust these authorities: a file of PEM, a folder with hashed names, PEM text or DER."""
        if cafile is None and capath is None and cadata is None:
            raise TypeError("cafile, capath and cadata cannot be all omitted")
        pem = b""
        if cafile is not None:
            pem += _read(cafile) + b"\n"
        if isinstance(cadata, str):
            pem += cadata.encode("ascii") + b"\n"
        elif cadata is not None:
            pem += _pem_of(bytes(cadata))
        if pem:
            _tls_context(False, {"ca_pem": pem})
            self._ca_pem += pem
        if capath is not None:
            path = os.fsencode(capath)
            _tls_context(False, {"ca_path": path})
            self._ca_path.append(path)
        self._changed()

    def load_default_certs(self, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
        """Trust the authorities that the system trusts."""
        self._add_roots = True
        self._changed()

    def set_default_verify_paths(self) -> None:
        """Trust the authorities that the system trusts."""
        self.load_default_certs()

    @property
    def verify_mode(self) -> ssl.VerifyMode:
        """Whether the peer's certificate is asked for and verified: ssl.CERT_NONE, CERT_OPTIONAL
        (of a server: only if the client sends one), CERT_REQUIRED."""
        return self._verify_mode

    @verify_mode.setter
    def verify_mode(self, mode: int) -> None:
        mode = ssl.VerifyMode(mode)
        if mode == ssl.CERT_NONE and self._check_hostname:
            raise ValueError("Cannot set verify_mode to CERT_NONE when check_hostname is enabled.")
        self._verify_mode = mode
        self._changed()

    @property
    def check_hostname(self) -> bool:
        """Whether a client checks that the certificate is for the host."""
        return self._check_hostname

    @check_hostname.setter
    def check_hostname(self, check: bool) -> None:
        self._check_hostname = bool(check)
        if check and self._verify_mode == ssl.CERT_NONE:
            self._verify_mode = ssl.CERT_REQUIRED
        self._changed()

    @property
    def verify_flags(self) -> ssl.VerifyFlags:
        """ssl.VERIFY_X509_TRUSTED_FIRST; other flags are not supported."""
        return _FLAGS

    @verify_flags.setter
    def verify_flags(self, flags: int) -> None:
        if flags != _FLAGS:
            raise ValueError(f"only {_FLAGS!r} is supported, not {ssl.VerifyFlags(flags)!r}")

    # ---- what is spoken ----

    @property
    def protocol(self) -> ssl._SSLMethod:
        """ssl.PROTOCOL_TLS_CLIENT or ssl.PROTOCOL_TLS_SERVER."""
        return self._protocol

    @property
    def minimum_version(self) -> ssl.TLSVersion:
        """The lowest version: ssl.TLSVersion.TLSv1_2 or TLSv1_3."""
        return self._minimum

    @minimum_version.setter
    def minimum_version(self, version: int) -> None:
        self._minimum = _version(version, ssl.TLSVersion.TLSv1_2)
        self._changed()

    @property
    def maximum_version(self) -> ssl.TLSVersion:
        """The highest version."""
        return self._maximum

    @maximum_version.setter
    def maximum_version(self, version: int) -> None:
        self._maximum = _version(version, ssl.TLSVersion.TLSv1_3)
        self._changed()

    @property
    def options(self) -> ssl.Options:
        """Those that count: ssl.OP_NO_TLSv1_2, OP_NO_TLSv1_3, OP_NO_TICKET, and
        OP_IGNORE_UNEXPECTED_EOF; SSLv3, compression and renegotiation are off in any case."""
        return self._options

    @options.setter
    def options(self, options: int) -> None:
        self._options = ssl.Options(options | _OPTIONS)
        self._changed()

    def set_ciphers(self, ciphers: str) -> None:
        """The ciphers of TLS 1.2, in OpenSSL's notation."""
        _tls_context(False, {"verify": False, "ciphers": ciphers})
        self._ciphers = ciphers
        self._changed()

    def set_ciphersuites(self, ciphersuites: str) -> None:
        """The cipher suites of TLS 1.3, separated by colons."""
        _tls_context(False, {"verify": False, "cipher_suites": ciphersuites})
        self._ciphersuites = ciphersuites
        self._changed()

    def set_groups(self, groups: str) -> None:
        """The groups of the key exchange, separated by colons, the preferred first."""
        _tls_context(False, {"verify": False, "groups": groups})
        self._groups = groups
        self._changed()

    def set_ecdh_curve(self, name: str) -> None:
        """As set_groups(name)."""
        self.set_groups(name)

    def set_alpn_protocols(self, protocols: Iterable[str], *, required: bool = True) -> None:
        """The protocols above TLS, the preferred first.

        A server chooses the first of its own that the client offers. A client that offers others
        only is refused (no_application_protocol), unless required is False; one that offers none is
        served.
        """
        if isinstance(protocols, str | bytes):
            raise TypeError("set_alpn_protocols() takes several protocols, not one")
        encoded = [bytes(each, "ascii") for each in protocols]
        for each in encoded:
            if not 0 < len(each) < 256:
                raise ssl.SSLError("ALPN protocols must be 1 to 255 bytes long")
        self._alpn = encoded
        self._alpn_required = required
        self._changed()

    @property
    def sni_callback(self) -> SNICallback | None:
        """Of a server: called for each handshake as callback(tls_socket, server_name, context).

        It may set tls_socket.context, and park. It returns None, or the alert that refuses the
        client; what it raises refuses it too, and comes out of the handshake.
        """
        return self._sni_callback

    @sni_callback.setter
    def sni_callback(self, callback: SNICallback | None) -> None:
        if callback is not None and not callable(callback):
            raise TypeError("not a callable object")
        self._sni_callback = callback
        self._changed()

    # ---- connections ----

    def wrap_socket(
        self,
        sock: Socket | TLSSocket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = False,
        server_hostname: str | None = None,
        session: TLSSession | None = None,
        *,
        handshake_timeout: float | None = None,
        received: bytes = b"",
    ) -> TLSSocket:
        """Begin TLS on a connected socket, which is closed for everyone else.

        Makes the handshake unless told not to; then the first read or write does. It is bounded by
        the socket's timeout, and by handshake_timeout from its first step on: 10 seconds for a
        server when none is given. `received` was read from the socket already and belongs to TLS.

        With suppress_ragged_eofs the peer's end without close_notify is an end as any other, for
        protocols that know themselves whether what came is whole.
        """
        server_side = bool(server_side)
        if server_side != (self._protocol == ssl.PROTOCOL_TLS_SERVER):
            raise ValueError(
                f"a {self._protocol.name} context is not for the "
                f"{'server' if server_side else 'client'}'s side"
            )
        if server_side and server_hostname is not None:
            raise ValueError("server_hostname can only be specified in client mode")
        if server_side and session is not None:
            raise ValueError("session can only be specified in client mode")
        if not server_side:
            if server_hostname == "" or (server_hostname or "").startswith("."):
                raise ValueError("server_hostname cannot be an empty string or start with a dot.")
            if self._check_hostname and server_hostname is None:
                raise ValueError("check_hostname requires server_hostname")
        if server_side and handshake_timeout is None:
            handshake_timeout = DEFAULT_HANDSHAKE_TIMEOUT
        wrapped = _tls_wrap(
            sock,
            self._native(server_side),
            self,
            server_side,
            None if server_hostname is None else _ascii_name(server_hostname),
            session,
            received,
            handshake_timeout,
            suppress_ragged_eofs,
        )
        if do_handshake_on_connect:
            try:
                wrapped.do_handshake()
            except BaseException:
                wrapped.close()
                raise
        return wrapped

    def _native(self, server_side: bool) -> _TLSContext:
        """The native context for what this one says now."""
        built, changes = self._built, self._changes
        if built is None:
            # Other fibers run while files are read: what they change is not in it.
            built = _tls_context(server_side, self._settings(server_side))
            if changes == self._changes:
                self._built = built
        return built

    def _changed(self) -> None:
        self._built = None
        self._changes += 1

    def _settings(self, server_side: bool) -> dict[str, Any]:
        low, high = self._minimum, self._maximum
        if self._options & ssl.OP_NO_TLSv1_2:
            low = max(low, ssl.TLSVersion.TLSv1_3)
        if self._options & ssl.OP_NO_TLSv1_3:
            high = min(high, ssl.TLSVersion.TLSv1_2)
        settings: dict[str, Any] = {
            "identities": self._identities,
            "alpn": self._alpn,
            "alpn_required": self._alpn_required,
            "verify": self._verify_mode != ssl.CERT_NONE,
            "check_host": self._check_hostname,
            "system_roots": False,
            "add_system_roots": self._add_roots,
            "min_version": _VERSIONS[low],
            "max_version": _VERSIONS[high],
            "ciphers": self._ciphers,
            "cipher_suites": self._ciphersuites,
            "groups": self._groups,
            "session_tickets": not self._options & ssl.OP_NO_TICKET,
            "ignore_truncation": bool(self._options & ssl.OP_IGNORE_UNEXPECTED_EOF),
        }
        if self._ca_pem:
            settings["ca_pem"] = self._ca_pem
        if self._ca_path:
            settings["ca_path"] = b":".join(self._ca_path)
        if server_side:
            settings["client_certificates"] = _CERTIFICATES[self._verify_mode]
            settings["asks"] = self._sni_callback is not None
        return settings


def create_default_context(
    purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH,
    *,
    cafile: _Path | None = None,
    capath: _Path | None = None,
    cadata: str | bytes | bytearray | None = None,
) -> Context:
    """A context with safe settings, for a client (SERVER_AUTH) or a server (CLIENT_AUTH).

    It trusts the authorities that are given, or else, of a client, those of the system.
    """
    if purpose == ssl.Purpose.SERVER_AUTH:
        context = Context(ssl.PROTOCOL_TLS_CLIENT)
    elif purpose == ssl.Purpose.CLIENT_AUTH:
        context = Context(ssl.PROTOCOL_TLS_SERVER)
    else:
        raise ValueError(f"purpose must be a ssl.Purpose, not {purpose!r}")
    if cafile or capath or cadata:
        context.load_verify_locations(cafile, capath, cadata)
    elif context.verify_mode != ssl.CERT_NONE:
        context.load_default_certs(purpose)
    return context


# ---- what they are made of ----


def _read(path: _Path) -> bytes:
    with open(os.fspath(path), "rb") as file:
        return file.read()


class _Password_of(Unique):
    """The password as bytes, asked for once."""

    def __init__(self, password: _Password) -> None:
        self._password = password
        self._known: bytes | None = None

    def __call__(self) -> bytes:
        if self._known is None:
            password = self._password() if callable(self._password) else self._password
            if isinstance(password, str):
                password = password.encode()
            elif not isinstance(password, bytes | bytearray):
                raise TypeError("password callback must return a string")
            if len(password) > 1024:
                raise ValueError("password cannot be longer than 1024 bytes")
            self._known = bytes(password)
        return self._known


def _pem_of(der: bytes) -> bytes:
    """Certificates of DER, one after the other, as PEM."""
    pem = b""
    while der:
        size = _der_size(der)
        pem += ssl.DER_cert_to_PEM_cert(der[:size]).encode()
        der = der[size:]
    if not pem:
        raise ssl.SSLError("not enough data: cadata does not contain a certificate")
    return pem


def _der_size(der: bytes) -> int:
    """How long the ASN.1 element is that the bytes begin with (X.690, 8.1.3)."""
    if len(der) >= 2:
        size, head = der[1], 2
        if size & 0x80:
            more = size & 0x7F
            head += more
            size = int.from_bytes(der[2:head], "big")
        if 0 < size <= len(der) - head:
            return head + size
    raise ssl.SSLError("not enough data: cadata does not contain a certificate")


def _version(version: int, default: ssl.TLSVersion) -> ssl.TLSVersion:
    if version in (ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.MAXIMUM_SUPPORTED):
        lowest = version == ssl.TLSVersion.MINIMUM_SUPPORTED
        return ssl.TLSVersion.TLSv1_2 if lowest else ssl.TLSVersion.TLSv1_3
    if version not in _VERSIONS:
        raise ValueError(
            f"Unsupported TLS/SSL version {version!r}: only TLS 1.2 and 1.3 are spoken"
        )
    return ssl.TLSVersion(version)


def _ascii_name(name: str) -> str:
    """A host as certificates say it: IDNA of what is not ASCII."""
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise ValueError(f"server_hostname {name!r} is no host name: {error}") from None


def _getpeercert(sock: TLSSocket, binary_form: bool = False) -> dict[str, Any] | bytes | None:
    """As ssl.SSLSocket.getpeercert()."""
    chain = sock.get_unverified_chain()
    if not chain:
        return None
    if binary_form:
        return chain[0]
    context = sock.context
    if isinstance(context, Context) and context.verify_mode == ssl.CERT_NONE:
        return {}
    return _decode(chain[0])


def _decode(der: bytes) -> dict[str, Any]:
    # The standard library decodes a certificate for the world only from a file.
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, ssl.DER_cert_to_PEM_cert(der).encode())
        decoded: dict[str, Any] = ssl._ssl._test_decode_cert(  # type: ignore[attr-defined]
            f"/proc/self/fd/{file}"
        )
        return decoded
    finally:
        os.close(file)
