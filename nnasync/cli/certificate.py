"""The files of `--certificate` and `--key`, checked before anything is compiled or served."""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from nnasync.errors import InvalidArgument


def check(certificate: Path | None, key: Path | None, *, option: str = "--key") -> None:
    """Raises InvalidArgument where nothing can be served over TLS with these files in PEM format.

    The file of the certificate may have further certificates behind its own. It has the key, too,
    where there is no `key`, which the `option` names.
    """
    if certificate is None:
        if key is not None:
            raise InvalidArgument(f"{option} {key} needs the --certificate that it belongs to")
        return
    key = key or certificate
    if _certified_key(certificate) != _private_key(key, option).public_key():
        raise InvalidArgument(
            f"the key in {key} is not that of the certificate in {certificate}; where the file of "
            "the certificate has several, its own is the first"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise InvalidArgument(f"{certificate} and {key} cannot be used: {error}") from error


def _certified_key(path: Path) -> object:
    try:
        return x509.load_pem_x509_certificate(_content(path)).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidArgument(f"{path} has no certificate in PEM format") from error


def _private_key(path: Path, option: str) -> PrivateKeyTypes:
    content = _content(path)
    try:
        return load_pem_private_key(content, None)
    except TypeError as error:
        raise InvalidArgument(
            f"the key in {path} has a password; a server takes a key without one, which "
            f"`openssl pkey -in {path} -out FILE` makes"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidArgument(f"{path} has no private key in PEM format; see {option}") from error


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise InvalidArgument(f"{path} is no file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error
