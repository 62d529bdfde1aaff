"""Certificates of this computer, for tests of servers over TLS."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_VALID_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """The files of a new certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate, private = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(certificate_of(key))
    private.write_bytes(pem(key))
    return certificate, private


def certificate_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate for this computer that its own key signs."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nnasync live")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_FROM + datetime.timedelta(days=36500))
        .add_extension(here, critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def pem(
    key: ec.EllipticCurvePrivateKey,
    encryption: serialization.KeySerializationEncryption | None = None,
) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        encryption or serialization.NoEncryption(),
    )
