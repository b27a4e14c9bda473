"""Parses and checks the values of settings: durations, names, secrets and their references, addresses, certificates."""

import base64
import hashlib
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo

from sweeperd import redis_url

_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: The present time plus a duration must stay within what Redis and Python can hold.
_YEAR = timedelta(days=365)
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
#: A key for HMAC, shared with the receiver.
SHARED = "whsec_"
#: An ed25519 key: the private key signs, and the receiver has the public key.
PRIVATE, PUBLIC = "whsk_", "whpk_"
#: The size in bytes of an ed25519 seed, and of the public key that may follow it.
SEED = 32


def _bounded(value: timedelta, most: timedelta) -> timedelta:
    if value > most:
        raise ValueError(f'must be at most "{most.days}d"')
    return value


def parse_duration(value: object) -> timedelta:
    """Raises ValueError if the value is not a duration."""
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str) or not (match := _DURATION.fullmatch(value)):
        raise ValueError('must be a duration such as "250ms", "5s", "10m", "72h" or "30d"')
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def milliseconds(duration: timedelta) -> int:
    """A duration in whole milliseconds, the unit of the scripts and of Redis's commands."""
    return duration // timedelta(milliseconds=1)


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than 0")
    return value


#: A time-out or an interval.
Duration = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(lambda value: _bounded(value, _YEAR))]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
#: How long something is kept, or counts.
Retention = Annotated[
    timedelta, BeforeValidator(parse_duration), AfterValidator(lambda value: _bounded(value, 100 * _YEAR))
]
PositiveRetention = Annotated[Retention, AfterValidator(_positive)]
#: "" turns the setting off: None.
OptionalDuration = Annotated[PositiveDuration | None, BeforeValidator(lambda value: None if value == "" else value)]
#: A name in metrics, in log lines and in the names of consumer groups.
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Section(BaseModel):
    """A table of the settings."""

    # No section is validated by itself, so it doesn't need its own validator.
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True, defer_build=True
    )


#: The variable with the directory of a service's credentials, set by systemd, and the error when it is missing.
CREDENTIALS = "CREDENTIALS_DIRECTORY"
NO_CREDENTIALS = f"${CREDENTIALS} is not set, which systemd sets for the service"


def fetched(value: object, info: ValidationInfo) -> object:
    """
    Resolves `file:PATH`, `credential:NAME` and `env:NAME` to their text. Other values stay unchanged. Raises ValueError
    if the reference cannot be read.
    """
    if not isinstance(value, str):
        return value
    context = info.context or {}
    environment: Mapping[str, str] = context.get("environment", os.environ)
    if path := _path(value, context):
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ValueError(f"the file {path} cannot be read: {reason}") from None
    if value.startswith("env:"):
        variable = value.removeprefix("env:")
        if variable not in environment:
            raise ValueError(f"the environment has no variable {variable}")
        return environment[variable]
    return value


def _path(value: str, context: Mapping[str, Any]) -> Path | None:
    """The file that a reference names, relative to the settings file; None for other values. Raises ValueError."""
    environment: Mapping[str, str] = context.get("environment", os.environ)
    kind, colon, name = value.partition(":")
    if not colon or kind not in ("file", "credential"):
        return None
    if kind == "file":
        return Path(context.get("directory", "."), name)
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError("credential:NAME takes the name of one file, without a path")
    if not environment.get(CREDENTIALS):
        raise ValueError(f"credential:{name} cannot be read: {NO_CREDENTIALS}")
    return Path(environment[CREDENTIALS], name)


def fetched_secret(value: object, info: ValidationInfo) -> object:
    """Like `fetched`, and notes a file so that a daemon can watch it."""
    context = info.context or {}
    if isinstance(value, str) and (path := _path(value, context)):
        context.setdefault("files", set()).add(path)
        context.setdefault("secret_files", set()).add(path)
    return fetched(value, info)


def unread(value: object, info: ValidationInfo) -> bool:
    """Whether the value is a reference and the loading command needs no secrets."""
    elsewhere = isinstance(value, str) and value.startswith(("file:", "env:", "credential:"))
    return elsewhere and not (info.context or {}).get("secrets", True)


#: White space and invisible characters, such as a byte order mark, that editors leave around a secret.
_AROUND = r"[\s\x00-\x1f\x7f\xad\u200b-\u200f\u2060-\u2064\ufeff]+"
_QUOTES = {'"': '"', "'": "'", "`": "`", "\u201c": "\u201d", "\u2018": "\u2019"}


def clean_secret(text: str) -> str:
    """
    Strips what copying leaves around a secret: white space, invisible characters, quotes, the `v1,` of a signature
    before a known prefix. Lower-cases the prefix. Raises ValueError if the secret looks damaged, because every receiver
    would reject its signatures.
    """
    text = _strip(text)
    while len(text) > 1 and _QUOTES.get(text[0]) == text[-1]:
        text = _strip(text[1:-1])
    if known := re.match(rf"(?:v1a?,\s*)?({SHARED}|{PRIVATE})", text, re.IGNORECASE):
        prefix, key = known[1].lower(), text[known.end() :]
        if SHARED in key or PRIVATE in key:
            raise ValueError(_damaged(prefix))  # pasted twice: as URL-safe base64 the text may decode to another key
        return prefix + key
    if PUBLIC in text.lower():
        raise ValueError(f"{PUBLIC} is a public key, for the receiver; the secret is its private key, {PRIVATE}")
    if damaged := re.search("whsec|whsk_", text, re.IGNORECASE):
        raise ValueError(_damaged(SHARED if damaged[0].lower() == "whsec" else PRIVATE))
    return text


def _damaged(prefix: str) -> str:
    return f"looks like a damaged {prefix} secret: it must be {prefix} and base64, and nothing else"


def _strip(text: str) -> str:
    return re.sub(rf"\A{_AROUND}|{_AROUND}\Z", "", text)


def check_secret(secret: str) -> None:
    """
    Raises ValueError if the secret cannot sign. A secret is a shared or private Standard Webhooks key in base64, or any
    other text.
    """
    if not secret.startswith(PRIVATE):
        hmac_key(secret)
        return
    seed, public = ed25519_pair(secret)
    try:
        # An optional dependency, loaded only when such a key is used.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    except ImportError:
        raise ValueError(f"{PRIVATE} needs the cryptography package: pip install 'sweeperd[ed25519]'") from None
    if public not in (b"", Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()):
        raise ValueError(f"the public key in {PRIVATE} belongs to another private key")


def hmac_key(secret: str) -> bytes:
    """
    The key for `webhook-signature`: the decoded base64 after `whsec_`, or the UTF-8 bytes of any other text. The base64
    may use either alphabet, with or without padding: Cycles generates unpadded URL-safe base64.

    Raises ValueError if the key is empty or malformed.
    """
    key = _decode(secret, SHARED) if secret.startswith(SHARED) else secret.encode()
    if not key:
        raise ValueError("a secret cannot be empty")
    return key


def ed25519_pair(secret: str) -> tuple[bytes, bytes]:
    """
    The 32-byte seed of a private key, in base64 after `whsk_`, and the 32-byte public key if it follows the seed, as in
    libsodium's keys. Raises ValueError.
    """
    key = _decode(secret, PRIVATE)
    if len(key) not in (SEED, 2 * SEED):
        raise ValueError(f"what follows {PRIVATE} is not 32 or 64 bytes in base64")
    return key[:SEED], key[SEED:]


def _decode(secret: str, prefix: str) -> bytes:
    text = secret.removeprefix(prefix).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:  # binascii.Error, or a character beyond ASCII
        raise ValueError(f"what follows {prefix} is not base64") from None


def _redis_url(value: SecretStr) -> SecretStr:
    redis_url.parse(value.get_secret_value())
    return value


def _http_url(value: SecretStr) -> SecretStr:
    if re.search(r"[\s\x00-\x1f\x7f]", value.get_secret_value()):
        raise ValueError("holds white space or a control character; write a space within a URL as %20")
    authority = re.split("[/?#]", value.get_secret_value().partition("://")[2])[0]
    redis_url.check_port(authority.rpartition("@")[2])
    try:
        parts = urlsplit(value.get_secret_value())
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("not a URL with http:// or https:// and a host")
    if "@" in parts.path or "@" in parts.fragment or parts.netloc.endswith(":"):
        # The text may be part of a password, which would be shown with the path and sent to another host.
        raise ValueError(
            "an @ after the host: in user and password, write `/`, `?`, `#` and `@` as %2F, %3F, %23 and %40; in a "
            "path, write `@` as %40"
        )
    redis_url.check_host(parts.hostname or "")
    return value


def _proxy(value: object, info: ValidationInfo) -> object:
    return None if unread(value, info) else fetched_secret(value, info)


def _proxy_url(value: SecretStr) -> SecretStr:
    if not _http_url(value).get_secret_value().lower().startswith("http:"):
        raise ValueError("must begin with http://: TLS goes through the proxy to the receiver, not to the proxy itself")
    return value


#: The name of a host, without port.
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})$")]
RedisUrl = Annotated[SecretStr, BeforeValidator(fetched), AfterValidator(_redis_url)]
HttpUrl = Annotated[SecretStr, AfterValidator(_http_url)]
#: The URL may hold a password, so it may be a reference to a file or to the environment.
OptionalProxyUrl = Annotated[Annotated[SecretStr, AfterValidator(_proxy_url)] | None, BeforeValidator(_proxy)]


def check_prefix(url: RedisUrl, prefix: str) -> None:
    """Raises ValueError if the scripts' keys would be spread over the slots of a Cluster, where no script could run."""
    topology = redis_url.parse(url.get_secret_value()).topology
    if topology is redis_url.Topology.CLUSTER and not redis_url.hash_tag(prefix):
        raise ValueError(
            'needs a hash tag, such as "{tenant-a}:", so that all keys are in one slot of the cluster at the url'
        )


def host_and_port(listen: str) -> tuple[str, int]:
    """Raises ValueError if the text is not `host:port`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise ValueError('must be "host:port", or "" to turn HTTP off')
    if int(port) > redis_url.MAX_PORT:
        raise ValueError(f"a port is a number from 0 (any free one) to {redis_url.MAX_PORT}")
    if host:
        redis_url.check_host(host)
    return host.removeprefix("[").removesuffix("]"), int(port)


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
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None


def trusted_bundle(environment: Mapping[str, str]) -> PemFile | None:
    """
    The CAs, a file or a directory, that the environment names and that requests trusts instead of certifi's. Raises
    ValueError with the variable's name first.
    """
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


OptionalPemFile = Annotated[PemFile | None, BeforeValidator(_pem_file)]


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
