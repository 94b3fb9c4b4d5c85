"""Certificates for tests of TLS, made by the openssl program."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Pki:
    roots: str
    certificate: str
    key: str
    client_certificate: str
    client_key: str

    def server_arguments(self, mutual: bool) -> list[str]:
        return [self.certificate, self.key, *([self.roots] if mutual else [])]

    def client_arguments(self, mutual: bool) -> list[str]:
        return [self.roots, *([self.client_certificate, self.client_key] if mutual else [])]


def openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True, timeout=60)


def make_pki(folder: Path) -> Pki:
    """A root, and a server's and a client's certificate of it, made in `folder`."""
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(
        "req", "-x509", *ec, "-days", "2", "-subj", "/CN=test root",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        "-keyout", "root.key", "-out", "root.pem", cwd=folder,
    )  # fmt: skip
    for name, extensions in (
        ("server", "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n"),
        ("client", "extendedKeyUsage=clientAuth\n"),
    ):
        # What a strict verifier wants to see as well.
        extensions += "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        (folder / f"{name}.ext").write_text(extensions)
        openssl(
            "req", *ec, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr",
            cwd=folder,
        )  # fmt: skip
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "root.pem", "-CAkey", "root.key",
            "-CAcreateserial", "-days", "1", "-extfile", f"{name}.ext", "-out", f"{name}.pem",
            cwd=folder,
        )  # fmt: skip
    names = ("root.pem", "server.pem", "server.key", "client.pem", "client.key")
    return Pki(*(str(folder / name) for name in names))
