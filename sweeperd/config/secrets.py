"""Reads secrets: resolves references to them, cleans what was pasted, and decodes keys."""

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import SecretStr, ValidationInfo

from sweeperd.webhook_keys import PRIVATE, PUBLIC, SEED, SHARED

#: The variable with the directory of a service's credentials, set by systemd, and the error when it is missing.
CREDENTIALS = "CREDENTIALS_DIRECTORY"
NO_CREDENTIALS = f"${CREDENTIALS} is not set, which systemd sets for the service"
#: The most characters that a file may have: a device such as /dev/zero never ends.
LARGEST = 1 << 20


def fetched(value: object, info: ValidationInfo) -> object:
    """Resolves `file:PATH`, `credential:NAME` and `env:NAME`; other values stay unchanged. Raises ValueError."""
    return resolved(value, info.context or {}) if isinstance(value, str) else value


def resolved(value: str, context: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The text that a reference names, or the value itself. Raises ValueError."""
    environment: Mapping[str, str] = context.get("environment", os.environ)
    if path := _path(value, context):
        return read_text(path).strip()
    if value.startswith("env:"):
        variable = value.removeprefix("env:")
        if variable not in environment:
            raise ValueError(f"the environment has no variable {variable}")
        return environment[variable]
    return value


def read_text(path: Path) -> str:
    """The content of a file that a setting names. Raises ValueError."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        other = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "its name holds a NUL"
        reason = error.strerror if isinstance(error, OSError) else other
        raise ValueError(f"the file {path} cannot be read: {reason}") from None
    if len(text) > LARGEST:
        raise ValueError(f"the file {path} has more than {LARGEST:,} characters")
    return text


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
    return is_reference(value) and not (info.context or {}).get("secrets", True)


def is_reference(value: object) -> bool:
    """Whether the value names the place of a secret."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    return isinstance(text, str) and text.startswith(("file:", "env:", "credential:"))


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
    if text.startswith("exec:"):
        raise ValueError("exec: is only for the user, password and URL of Redis; use file:, env: or credential: here")
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
    """Raises ValueError if the secret, a Standard Webhooks key in base64 or any other text, cannot sign."""
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
    key = decode_key(secret, SHARED) if secret.startswith(SHARED) else secret.encode()
    if not key:
        raise ValueError("a secret cannot be empty")
    return key


def ed25519_pair(secret: str) -> tuple[bytes, bytes]:
    """The seed of a private key, and the public key if it follows the seed, as in libsodium. Raises ValueError."""
    key = decode_key(secret, PRIVATE)
    if len(key) not in (SEED, 2 * SEED):
        raise ValueError(f"what follows {PRIVATE} is not 32 or 64 bytes in base64")
    return key[:SEED], key[SEED:]


def ed25519_public(key: str) -> bytes:
    """The 32 bytes of a public key, in base64 after `whpk_`. Raises ValueError."""
    if not key.startswith(PUBLIC):
        raise ValueError(f"a public key begins with {PUBLIC}; `sweeperd endpoints keygen` prints one")
    public = decode_key(key, PUBLIC)
    if len(public) != SEED:
        raise ValueError(f"what follows {PUBLIC} is not 32 bytes in base64")
    return public


def decode_key(secret: str, prefix: str) -> bytes:
    """The bytes of the base64 after the prefix. Raises ValueError."""
    text = secret.removeprefix(prefix).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:  # binascii.Error, or a character beyond ASCII
        raise ValueError(f"what follows {prefix} is not base64") from None
