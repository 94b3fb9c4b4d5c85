"""runloom.tls.Context: what it takes, what it refuses, and what its connections then do."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from socket_support import failure, go, join, own_pair, run
from tls_support import NATIVE, bare_pair, client_context, server_context, tls_pair, world, write

import runloom.sync as sync
import runloom.tls
from runloom.tls import Context, TLSSocket, create_default_context


def server() -> Context:
    return Context(ssl.PROTOCOL_TLS_SERVER)


def handshakes(client: Context, at_server: Context, host: str = "localhost") -> list[Any]:
    """What the two ends' handshakes come to: None, or the error."""
    with own_pair() as (left, right):
        theirs = right.start_tls(at_server, server_side=True, do_handshake=False)
        ours = left.start_tls(client, server_hostname=host, do_handshake=False)
    with ours, theirs:
        accepted = go(failure, theirs.do_handshake)
        errors = [failure(ours.do_handshake)]
        # With TLS 1.3 a client learns with its first read that its certificate was refused.
        reader = go(failure, ours.recv, 1) if errors[0] is None else None
        errors += join(accepted)
        theirs.close()
        if reader is not None:
            errors.append(join(reader)[0])
    return errors


# ---------------------------------------------------------------- who we are


def test_files_of_a_certificate(tmp_path: Path) -> None:
    together = write(world().server, tmp_path / "both.pem")
    certificate, key, other = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "other.pem"
    world().server.cert_chain_pems[0].write_to_path(str(certificate))
    world().server.private_key_pem.write_to_path(str(key))
    world().other.private_key_pem.write_to_path(str(other))
    (tmp_path / "text").write_text("no certificate")

    def main() -> None:
        for arguments in ((together,), (certificate, key), (os.fsencode(certificate), str(key))):
            context = server()
            context.load_cert_chain(*arguments)
            assert handshakes(client_context(NATIVE), context)[:2] == [None, None]
        context = server()
        with pytest.raises(FileNotFoundError, match="none"):
            context.load_cert_chain(tmp_path / "none")
        with pytest.raises(ssl.SSLError, match=r"text: .*no certificate can be read"):
            context.load_cert_chain(tmp_path / "text")
        with pytest.raises(ssl.SSLError, match=r"cert.pem: .*no private key can be read"):
            context.load_cert_chain(certificate)
        with pytest.raises(ssl.SSLError, match=r"cert.pem, .*other.pem: .*not the key"):
            context.load_cert_chain(certificate, other)
        with pytest.raises(TypeError):
            context.load_cert_chain(None)  # type: ignore[arg-type]
        # None of it was loaded.
        with pytest.raises(ssl.SSLError, match="needs a certificate"):
            context._native(True)

    run(main)


def test_a_loaded_file_may_go(tmp_path: Path) -> None:
    def main() -> None:
        context = server_context(NATIVE, tmp_path)
        (tmp_path / "server.pem").unlink()
        assert handshakes(client_context(NATIVE), context)[:2] == [None, None]

    run(main)


def test_passwords(tmp_path: Path) -> None:
    write(world().server, tmp_path / "plain.pem")
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", tmp_path / "plain.pem", "-aes256", "-passout", "pass:sesame",
         "-out", locked],
        check=True, capture_output=True,
    )  # fmt: skip
    chain = tmp_path / "cert.pem"
    world().server.cert_chain_pems[0].write_to_path(str(chain))
    asked = []

    def ask() -> str:
        sync.sleep(0.001)  # it may park
        asked.append(1)
        return "sesame"

    def main() -> None:
        for password in ("sesame", b"sesame", bytearray(b"sesame"), ask):
            context = server()
            context.load_cert_chain(chain, locked, password)
            assert handshakes(client_context(NATIVE), context)[:2] == [None, None]
        assert asked == [1]
        context = server()
        with pytest.raises(ssl.SSLError, match="encrypted, and there is no password"):
            context.load_cert_chain(chain, locked)
        with pytest.raises(ssl.SSLError, match="no private key can be read"):
            context.load_cert_chain(chain, locked, "wrong")
        with pytest.raises(ZeroDivisionError):
            context.load_cert_chain(chain, locked, lambda: str(1 / 0))
        with pytest.raises(TypeError, match="must return a string"):
            context.load_cert_chain(chain, locked, lambda: 7)  # type: ignore[arg-type, return-value]
        with pytest.raises(ValueError, match="1024"):
            context.load_cert_chain(chain, locked, "x" * 1025)
        # Not asked where there is nothing to open.
        context.load_cert_chain(tmp_path / "plain.pem", password=lambda: str(1 / 0))

    run(main)


# ---------------------------------------------------------------- whom to trust


def test_a_certificate_that_is_refused_says_why_and_for_whom(tmp_path: Path) -> None:
    def refused(client: Context, at_server: Context, host: str) -> ssl.SSLCertVerificationError:
        ours, theirs = handshakes(client, at_server, host)[:2]
        assert isinstance(ours, ssl.SSLCertVerificationError), ours
        assert isinstance(theirs, ssl.SSLError), theirs
        assert ours.reason == "CERTIFICATE_VERIFY_FAILED"
        assert host in str(ours)
        return ours

    def main() -> None:
        context = server_context(NATIVE, tmp_path)
        error = refused(client_context(NATIVE), context, "elsewhere.test")
        assert error.verify_code == 62
        assert error.verify_message == "hostname mismatch"
        error = refused(client_context(NATIVE), context, "127.0.0.2")
        assert error.verify_code == 64
        assert handshakes(client_context(NATIVE), context, "127.0.0.1")[:2] == [None, None]
        stranger = create_default_context(cadata=world().stranger.cert_pem.bytes().decode())
        error = refused(stranger, context, "localhost")
        assert error.verify_code in (19, 20)
        # A bare context trusts nobody.
        error = refused(Context(), context, "localhost")
        assert error.verify_code in (19, 20)
        careless = Context()
        careless.check_hostname = False
        careless.verify_mode = ssl.CERT_NONE
        assert handshakes(careless, context, "elsewhere.test")[:2] == [None, None]

    run(main)


def test_where_authorities_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = world().ca_pem
    (tmp_path / "ca.pem").write_text(pem)
    hashed = tmp_path / "hashed"
    hashed.mkdir()
    (hashed / "ca.pem").write_text(pem)
    subprocess.run(["openssl", "rehash", hashed], check=True)
    der = ssl.PEM_cert_to_DER_cert(pem)
    stranger = ssl.PEM_cert_to_DER_cert(world().stranger.cert_pem.bytes().decode())

    def main() -> None:
        at_server = server_context(NATIVE, tmp_path)
        for arguments in (
            {"cafile": tmp_path / "ca.pem"},
            {"cafile": os.fsencode(tmp_path / "ca.pem")},
            {"capath": hashed},
            {"cadata": pem},
            {"cadata": der},
            {"cadata": stranger + der},
            {"cadata": bytearray(der)},
        ):
            context = create_default_context(**arguments)  # type: ignore[arg-type]
            assert handshakes(context, at_server)[:2] == [None, None], arguments
        # They add up, and stand beside the system's.
        context = create_default_context(cadata=stranger)
        context.load_verify_locations(cadata=pem)
        assert handshakes(context, at_server)[:2] == [None, None]
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        context = create_default_context(cadata=stranger)
        context.load_default_certs()
        assert handshakes(context, at_server)[:2] == [None, None]
        assert handshakes(create_default_context(), at_server)[:2] == [None, None]
        context = Context()
        with pytest.raises(TypeError, match="all omitted"):
            context.load_verify_locations()
        with pytest.raises(FileNotFoundError):
            context.load_verify_locations(tmp_path / "none")
        with pytest.raises(OSError, match=r"[Dd]irectory"):
            context.load_verify_locations(capath=tmp_path / "none")
        with pytest.raises(ssl.SSLError, match="no root certificate"):
            context.load_verify_locations(cadata="text")
        for data in (b"", b"0", b"\x30\x82\xff\xff", der[:-1], b"\x30\x80" + der):
            with pytest.raises(ssl.SSLError):
                context.load_verify_locations(cadata=data)

    run(main)


def test_how_checks_depend_on_each_other() -> None:
    context = Context()
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    with pytest.raises(ValueError, match="check_hostname is enabled"):
        context.verify_mode = ssl.CERT_NONE
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.check_hostname = True
    assert context.verify_mode == ssl.CERT_REQUIRED
    with pytest.raises(ValueError):
        context.verify_mode = 7
    assert not server().check_hostname
    assert server().verify_mode == ssl.CERT_NONE
    context.verify_flags = context.verify_flags
    with pytest.raises(ValueError, match="VERIFY_CRL_CHECK_LEAF"):
        context.verify_flags = ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    with pytest.raises(ValueError, match="PROTOCOL_TLS_CLIENT"):
        Context(ssl.PROTOCOL_TLS)
    with pytest.raises(ValueError, match="purpose"):
        create_default_context("server")  # type: ignore[arg-type]
    assert "PROTOCOL_TLS_CLIENT" in repr(context)


def test_L22_client_certificates(tmp_path: Path) -> None:
    def main() -> None:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            at_server = create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=world().ca_pem)
            at_server.load_cert_chain(write(world().server, tmp_path / "server.pem"))
            at_server.verify_mode = ssl.CERT_REQUIRED
            client = client_context(NATIVE)
            client.maximum_version = version
            ours, theirs, *read = handshakes(client, at_server)
            told = ours if ours is not None else read[0]
            assert isinstance(told, ssl.SSLError), told
            assert isinstance(theirs, ssl.SSLError)
            assert theirs.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
            if version == ssl.TLSVersion.TLSv1_3:
                assert "certificate required" in str(told)
            # One of a stranger.
            client.load_cert_chain(
                write(world().stranger.issue_cert("x@example.test"), tmp_path / "stranger.pem")
            )
            ours, theirs, *read = handshakes(client, at_server)
            told = ours if ours is not None else read[0]
            assert isinstance(told, ssl.SSLError)
            assert told.reason == "TLSV1_ALERT_UNKNOWN_CA"
            assert isinstance(theirs, ssl.SSLCertVerificationError)
            # And a good one.
            client = client_context(NATIVE)
            client.maximum_version = version
            client.load_cert_chain(write(world().client, tmp_path / "client.pem"))
            with tls_pair(client, at_server) as (_, end):
                certificate = end.getpeercert()
                assert ("email", "client@example.test") in certificate["subjectAltName"]
                assert len(end.get_unverified_chain()) >= 1
            at_server.verify_mode = ssl.CERT_OPTIONAL
            assert handshakes(client_context(NATIVE), at_server)[:2] == [None, None]

    run(main)


# ---------------------------------------------------------------- what is spoken


def test_versions(tmp_path: Path) -> None:
    low, high = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3

    def main() -> None:
        at_server = server_context(NATIVE, tmp_path)
        client = client_context(NATIVE)
        assert (client.minimum_version, client.maximum_version) == (low, high)
        client.maximum_version = low
        with tls_pair(client, at_server) as (ours, _):
            assert ours.version() == "TLSv1.2"
        client.options |= ssl.OP_NO_TLSv1_3
        client.maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED
        with tls_pair(client, at_server) as (ours, _):
            assert ours.version() == "TLSv1.2"
        at_server.minimum_version = high
        ours, theirs = handshakes(client, at_server)[:2]
        assert isinstance(ours, ssl.SSLError)
        assert ours.reason == "TLSV1_ALERT_PROTOCOL_VERSION"
        assert isinstance(theirs, ssl.SSLError)
        assert theirs.reason == "UNSUPPORTED_PROTOCOL"
        client.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        assert client.minimum_version == low
        for version in (ssl.TLSVersion.TLSv1, 5):
            with pytest.raises(ValueError, match="only TLS"):
                client.minimum_version = version
        client = client_context(NATIVE)
        client.minimum_version = high
        client.options |= ssl.OP_NO_TLSv1_3
        with own_pair() as (left, _), pytest.raises((ssl.SSLError, KeyError)):
            left.start_tls(client, server_hostname="localhost")

    run(main)


def test_ciphers_and_groups(tmp_path: Path) -> None:
    def main() -> None:
        client = client_context(NATIVE)
        client.set_ciphersuites("TLS_CHACHA20_POLY1305_SHA256")
        client.set_ecdh_curve("secp384r1")
        with tls_pair(client, server_context(NATIVE, tmp_path)) as (ours, _):
            assert ours.cipher() == ("TLS_CHACHA20_POLY1305_SHA256", "TLSv1.3", 256)
        client = client_context(NATIVE)
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        client.set_ciphers("ECDHE+AESGCM:!AES256")
        with tls_pair(client, server_context(NATIVE, tmp_path)) as (ours, _):
            assert "AES128-GCM" in ours.cipher()[0]
        strict = server_context(NATIVE, tmp_path)
        strict.set_ciphers("ECDHE+CHACHA20")
        ours, theirs = handshakes(client, strict)[:2]
        assert isinstance(theirs, ssl.SSLError)
        assert theirs.reason == "NO_SHARED_CIPHER"
        assert isinstance(ours, ssl.SSLError)
        for call in (client.set_ciphers, client.set_ciphersuites, client.set_groups):
            with pytest.raises(ssl.SSLError):
                call("nothing of that name")

    run(main)


def test_L20_protocols_that_have_nothing_in_common(tmp_path: Path) -> None:
    def main() -> None:
        client, at_server = client_context(NATIVE), server_context(NATIVE, tmp_path)
        client.set_alpn_protocols(["h2"])
        at_server.set_alpn_protocols(["http/1.1"])
        ours, theirs = handshakes(client, at_server)[:2]
        assert isinstance(ours, ssl.SSLError)
        assert "no application protocol" in str(ours).lower()
        assert isinstance(theirs, ssl.SSLError)
        at_server.set_alpn_protocols(["http/1.1"], required=False)
        with tls_pair(client, at_server) as (end, _):
            assert end.selected_alpn_protocol() is None
        with pytest.raises(TypeError, match="several protocols"):
            client.set_alpn_protocols("h2")
        for wrong in ([""], ["x" * 256]):
            with pytest.raises(ssl.SSLError, match="1 to 255 bytes"):
                client.set_alpn_protocols(wrong)

    run(main)


# ---------------------------------------------------------------- the SNI callback


def test_L20_a_callback_may_change_the_context(tmp_path: Path) -> None:
    def main() -> None:
        other = server_context(NATIVE, tmp_path, world().other)
        seen: list[tuple[Any, ...]] = []

        def choose(conn: TLSSocket, name: str | None, context: Context) -> None:
            sync.sleep(0.001)  # it may park
            seen.append((name, context))
            if name == "other.test":
                conn.context = other
            assert conn.version() is None

        at_server = server_context(NATIVE, tmp_path)
        at_server.sni_callback = choose
        assert at_server.sni_callback is choose
        for host in ("other.test", "localhost", "127.0.0.1"):
            with tls_pair(client_context(NATIVE), at_server, server_hostname=host) as (_, theirs):
                assert (theirs.context is other) == (host == "other.test")
                with pytest.raises(ValueError, match="only the SNI callback"):
                    theirs.context = other
        assert seen == [("other.test", at_server), ("localhost", at_server), (None, at_server)]
        # Without a certificate of its own.
        bare = server()
        bare.sni_callback = choose
        assert handshakes(client_context(NATIVE), bare, "other.test")[:2] == [None, None]
        theirs = handshakes(client_context(NATIVE), bare, "localhost")[1]
        assert isinstance(theirs, ssl.SSLError)

    run(main)


@pytest.mark.parametrize(
    ("callback", "alert", "error"),
    [
        (lambda *_: 1 / 0, "internal error", ZeroDivisionError),
        (lambda *_: ssl.AlertDescription.ALERT_DESCRIPTION_ACCESS_DENIED, "access denied",
         ssl.SSLError),
        (lambda *_: "text", "internal error", TypeError),
        (lambda *_: 4711, "internal error", ValueError),
        (lambda conn, *_: setattr(conn, "context", 7), "internal error", TypeError),
        (lambda conn, *_: setattr(conn, "context", Context(ssl.PROTOCOL_TLS_SERVER)),
         "internal error", ssl.SSLError),
    ],
)  # fmt: skip
def test_L20_a_callback_that_refuses(
    callback: Callable[..., Any], alert: str, error: type[Exception], tmp_path: Path
) -> None:
    def main() -> None:
        at_server = server_context(NATIVE, tmp_path)
        at_server.sni_callback = callback
        ours, theirs = handshakes(client_context(NATIVE), at_server)[:2]
        assert isinstance(ours, ssl.SSLError)
        assert alert in str(ours)
        assert isinstance(theirs, error), theirs
        # That connection only.
        at_server.sni_callback = None
        assert handshakes(client_context(NATIVE), at_server)[:2] == [None, None]
        with pytest.raises(TypeError, match="callable"):
            at_server.sni_callback = 7  # type: ignore[assignment]

    run(main)


def test_a_callback_may_make_connections(tmp_path: Path) -> None:
    """A handshake within a handshake, on one fiber."""

    def main() -> None:
        inner_server = server_context(NATIVE, tmp_path)
        names: list[str | None] = []
        inner_server.sni_callback = lambda conn, name, context: names.append(name)
        outer_server = server_context(NATIVE, tmp_path)

        def ask(conn: TLSSocket, name: str | None, context: Context) -> None:
            names.append(name)
            assert handshakes(client_context(NATIVE), inner_server)[:2] == [None, None]

        outer_server.sni_callback = ask
        assert handshakes(client_context(NATIVE), outer_server, "example.test")[:2] == [None, None]
        assert names == ["example.test", "localhost"]

    run(main)


def test_hosts_that_are_not_ascii(tmp_path: Path) -> None:
    cert = world().ca.issue_cert("xn--bcher-kva.test")

    def main() -> None:
        context = server_context(NATIVE, tmp_path, cert)
        assert handshakes(client_context(NATIVE), context, "bücher.test")[:2] == [None, None]
        with own_pair() as (left, _), pytest.raises(ValueError, match="no host name"):
            left.start_tls(client_context(NATIVE), server_hostname="b\udcffb")

    run(main)


# ---------------------------------------------------------------- sessions


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_is_resumed(version: ssl.TLSVersion, tmp_path: Path) -> None:
    def main() -> None:
        client, at_server = client_context(NATIVE), server_context(NATIVE, tmp_path)
        client.maximum_version = version
        with sync.tls_listen("127.0.0.1", 0, context=at_server) as listener:

            def serve() -> None:
                for _ in range(2):
                    with listener.accept()[0] as conn:
                        conn.sendall(b"x")

            at = go(serve)
            session = None
            for reused in (False, True):
                with sync.tls_connect(
                    "localhost", listener.getsockname()[1], context=client, session=session
                ) as conn:
                    assert conn.recv(1) == b"x"
                    assert conn.session_reused is reused
                    session = conn.session
                    assert session is not None
            join(at)

    run(main)


def test_a_session_of_another_context_is_not_resumed(tmp_path: Path) -> None:
    def main() -> None:
        at_server = server_context(NATIVE, tmp_path)
        with tls_pair(client_context(NATIVE), at_server) as (ours, theirs):
            theirs.sendall(b"x")
            assert ours.recv(1) == b"x"
            session = ours.session
        with own_pair() as (left, right):
            accepted = go(lambda: right.start_tls(at_server, server_side=True))
            conn = left.start_tls(
                client_context(NATIVE), server_hostname="localhost", session=session
            )
            with conn, join(accepted)[0]:
                assert not conn.session_reused

    run(main)


def test_channel_binding(tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(NATIVE), server_context(NATIVE, tmp_path)) as (ours, theirs):
            binding = ours.get_channel_binding()
            assert len(binding) == 32
            assert theirs.get_channel_binding("tls-exporter") == binding
            with pytest.raises(ValueError, match="tls-unique"):
                ours.get_channel_binding("tls-unique")
        left, right = bare_pair(client_context(NATIVE), server_context(NATIVE, tmp_path))
        with left, right:
            assert left.get_channel_binding() is None

    run(main)


def test_a_change_counts_for_later_connections(tmp_path: Path) -> None:
    def main() -> None:
        client, at_server = client_context(NATIVE), server_context(NATIVE, tmp_path)
        native = client._native(False)
        assert client._native(False) is native
        with tls_pair(client, at_server) as (ours, _):
            client.maximum_version = ssl.TLSVersion.TLSv1_2
            assert client._native(False) is not native
            assert ours.version() == "TLSv1.3"

    run(main)


def test_a_change_while_a_context_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = runloom.tls._tls_context

    def slowly(*arguments: Any) -> Any:
        sync.sleep(0.002)
        return build(*arguments)

    def main() -> None:
        client = client_context(NATIVE)
        monkeypatch.setattr(runloom.tls, "_tls_context", slowly)
        first = go(client._native, False)
        sync.yield_now()
        assert not first.done
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        old = join(first)[0]
        assert client._native(False) is not old
        with tls_pair(client, server_context(NATIVE, tmp_path)) as (ours, _):
            assert ours.version() == "TLSv1.2"

    run(main)


def test_a_certificate_for_another_kind_of_key_is_added(tmp_path: Path) -> None:
    rsa = world().ca.issue_cert("localhost", key_type=trustme.KeyType.RSA)

    def main() -> None:
        context = server_context(NATIVE, tmp_path)
        context.load_cert_chain(write(rsa, tmp_path / "rsa.pem"))
        client = client_context(NATIVE)
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        for ciphers, der_of in (("aRSA+AESGCM", rsa), ("aECDSA+AESGCM", world().server)):
            client.set_ciphers(ciphers)
            with tls_pair(client, context) as (ours, _):
                pem = ssl.DER_cert_to_PEM_cert(ours.getpeercert(True))
                assert pem.strip() == der_of.cert_chain_pems[0].bytes().decode().strip()

    run(main)
