"""Generates the keys that sign webhooks."""

import base64
import secrets

#: A key for HMAC, shared with the receiver.
SHARED = "whsec_"
#: An ed25519 key: the private key signs, and the receiver has the public key.
PRIVATE, PUBLIC = "whsk_", "whpk_"
#: The size in bytes of an ed25519 seed, of the public key that may follow it, and of a shared key.
SEED = 32


def generate_pair() -> tuple[str, str]:
    """
    A new pair as text: the private key `whsk_…`, which includes the public key, and the public key `whpk_…`. Raises
    ImportError without the extra.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    pair = key.private_bytes_raw() + public
    return PRIVATE + base64.b64encode(pair).decode(), PUBLIC + base64.b64encode(public).decode()


def generate_shared() -> str:
    return SHARED + base64.b64encode(secrets.token_bytes(SEED)).decode()
