"""Keys and certificates of one embedded cluster: a CA, a server's and a client's certificate, and the token key.

All components share the server's certificate; the API server shows the client's one to etcd and to the kubelet, which
is the node agent or a real one.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

API_SERVER_USER: Final = "kube-apiserver"
"""As whom the API server comes to the kubelet."""

_LIFETIME = dt.timedelta(days=30)
_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of the PEM files."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path
    token_key: Path
    """Key that signs service account tokens."""


def write_certificates(folder: Path, addresses: Sequence[str] = ()) -> Certificates:
    """Make a new CA and all that it signs, in `folder`; the server is known by `addresses`, too."""
    files = Certificates(
        authority=folder / "ca.crt",
        server=folder / "server.crt",
        server_key=folder / "server.key",
        client=folder / "client.crt",
        client_key=folder / "client.key",
        token_key=folder / "token.key",
    )
    issuer = _Issuer.create()
    files.authority.write_bytes(issuer.certificate.public_bytes(serialization.Encoding.PEM))
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in _SERVER_NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", *addresses)]
    issuer.issue("inferbench-server", ExtendedKeyUsageOID.SERVER_AUTH, names, files.server, files.server_key)
    issuer.issue(API_SERVER_USER, ExtendedKeyUsageOID.CLIENT_AUTH, [], files.client, files.client_key)
    _write_key(files.token_key, ec.generate_private_key(ec.SECP256R1()))
    return files


@dataclass(frozen=True, slots=True)
class _Issuer:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls) -> _Issuer:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("inferbench-ca")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    def issue(
        self, common_name: str, usage: x509.ObjectIdentifier, names: list[x509.GeneralName], path: Path, key_path: Path
    ) -> None:
        """Sign a certificate for a new key and write both."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(common_name), self.certificate.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        _write_key(key_path, key)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
