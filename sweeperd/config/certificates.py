"""Checks the certificates and private keys that the settings name."""

import hashlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema


@dataclass(frozen=True, slots=True)
class PemFile:
    """A file with certificates or a key, and the digest of its content when the settings were loaded."""

    path: Path
    #: SHA-256 of the content, by which a reload detects a changed file. Empty if the file was not read.
    digest: str = field(repr=False)

    def __str__(self) -> str:
        return str(self.path)


def _pem_file(value: object, info: ValidationInfo) -> object:
    """`value`: a path, relative to the directory of the configuration file."""
    if value is None or isinstance(value, PemFile):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("must be the path of a PEM file")
    context = info.context or {}
    path = Path(context.get("directory", "."), value)
    if not context.get("secrets", True):
        return PemFile(path, "")
    context.setdefault("files", set()).add(path)
    if info.field_name == "client_key":
        context.setdefault("secret_files", set()).add(path)
    try:
        return PemFile(path, hashlib.sha256(path.read_bytes()).hexdigest())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {getattr(error, 'strerror', 'its name holds a NUL')}") from None


def trusted_bundle(environment: Mapping[str, str]) -> PemFile | None:
    """The CAs that the environment names for requests, instead of certifi's. Raises ValueError."""
    name = next((name for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE") if environment.get(name)), None)
    if name is None:
        return None
    path = Path(environment[name])
    try:
        if path.is_dir():
            stamps = sorted((each.name, each.stat().st_mtime_ns) for each in path.iterdir())
            return PemFile(path, hashlib.sha256(repr(stamps).encode()).hexdigest())
        bundle = PemFile(path, hashlib.sha256(path.read_bytes()).hexdigest())
        check_certificates(bundle)
    except OSError as error:
        raise ValueError(f"{name}: {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return bundle


OptionalPemFile = Annotated[
    PemFile | None,
    BeforeValidator(_pem_file),
    PlainSerializer(lambda file: "" if file is None else str(file), when_used="json"),
    WithJsonSchema({"type": "string", "minLength": 1}),
]


class _Encrypted(Exception):
    """The key has a password. Raised by a callback, because OpenSSL would otherwise prompt on the terminal."""


def check_certificates(file: PemFile) -> None:
    """Raises ValueError if the file was read and holds no certificate."""
    if not file.digest:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file.path)
    except (ssl.SSLError, OSError):
        raise ValueError(f"{file}: holds no certificate in PEM form") from None


def check_key(certificate: PemFile, key: PemFile | None) -> None:
    """Without `key`, the certificate's file also holds the key. Raises ValueError if the two don't match."""
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
    """Make the context present this client certificate. Raises ssl.SSLError, OSError."""

    def refuse() -> str:
        raise _Encrypted

    context.load_cert_chain(certificate.path, key.path if key else None, refuse)
