"""Asymmetric keys: the receiver needs the public key only, so it cannot sign in sweeperd's name."""

import base64
import hashlib
import json
from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sweeperd.config.secrets import PRIVATE, PUBLIC, ed25519_pair


def private_key(secret: str) -> Ed25519PrivateKey:
    """The key of a secret `whsk_…`. Raises ValueError."""
    return Ed25519PrivateKey.from_private_bytes(ed25519_pair(secret)[0])


def generate() -> tuple[str, str]:
    """A new pair as text: the private key `whsk_…`, which includes the public one, and the public key `whpk_…`."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    pair = key.private_bytes_raw() + public
    return PRIVATE + base64.b64encode(pair).decode(), PUBLIC + base64.b64encode(public).decode()


def jwk(secret: str) -> dict[str, str]:
    """The public key of a secret `whsk_…` as a JSON Web Key (RFC 8037), named by its thumbprint (RFC 7638)."""
    members = {"crv": "Ed25519", "kty": "OKP", "x": _url_safe(private_key(secret).public_key().public_bytes_raw())}
    thumbprint = hashlib.sha256(json.dumps(members, separators=(",", ":"), sort_keys=True).encode()).digest()
    return members | {"kid": _url_safe(thumbprint), "alg": "EdDSA", "use": "sig"}


def jwks(secrets: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """The set of the public keys of these secrets `whsk_…`, each once."""
    keys = {key["kid"]: key for key in map(jwk, secrets)}
    return {"keys": list(keys.values())}


def _url_safe(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
