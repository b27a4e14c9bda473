"""The PEM files of an endpoint: its client certificate with the key, and the CAs that the receiver may be signed by."""

import hashlib
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ValidationInfo

_NO_CERTIFICATE = "holds no certificate in PEM form"


@dataclass(frozen=True, slots=True)
class PemFile:
    """A file, and its content as it was when the settings were read."""

    path: Path
    #: SHA-256 of the content. A reload compares it, and so finds that a file has changed. Empty: it was not read.
    digest: str = field(repr=False)

    def __str__(self) -> str:
        return str(self.path)


def _pem_file(value: object, info: ValidationInfo) -> object:
    """`value`: a path, relative to the directory of the configuration file."""
    if value is None or isinstance(value, PemFile):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("the path of a PEM file")
    context = info.context or {}
    path = Path(context.get("directory", "."), value)
    if not context.get("secrets", True):
        return PemFile(path, "")
    try:
        return PemFile(path, hashlib.sha256(path.read_bytes()).hexdigest())
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None


OptionalPemFile = Annotated[PemFile | None, BeforeValidator(_pem_file)]


class _Encrypted(Exception):
    """OpenSSL asks for the password of a key. Without a callback that raises, it would ask on the terminal."""


def check_certificates(file: PemFile) -> None:
    """Raises ValueError where it was read and holds no certificate."""
    if not file.digest:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file.path)
    except (ssl.SSLError, OSError):
        raise ValueError(f"{file}: {_NO_CERTIFICATE}") from None


def check_key(certificate: PemFile, key: PemFile | None) -> None:
    """`key` None: the key is in the file of the certificate. Raises ValueError where both do not fit together."""
    if not certificate.digest:
        return
    place = key or certificate
    try:
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key)
    except _Encrypted:
        raise ValueError(
            f"{place}: the key has a password; write it without one (openssl pkey -in FILE -out NEW) in a file that "
            "only sweeperd may read"
        ) from None
    except (ssl.SSLError, OSError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"{place}: the key belongs to another certificate than {certificate}") from None
        missing = "" if key else "; name the file of the key in client_key"
        raise ValueError(f"{place}: holds no private key in PEM form{missing}") from None


def load_pair(context: ssl.SSLContext, certificate: PemFile, key: PemFile | None) -> None:
    """Have the context answer with this client certificate. Raises ssl.SSLError, OSError."""

    def refuse() -> str:
        raise _Encrypted

    context.load_cert_chain(certificate.path, key.path if key else None, refuse)
