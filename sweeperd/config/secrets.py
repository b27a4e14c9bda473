"""The forms of a webhook's secret: a Standard Webhooks key in base64, shared or private, or any other text."""

import base64
import binascii

#: A key for HMAC, shared with the receiver.
SHARED = "whsec_"
#: An ed25519 key: the private one signs, and the receiver has the public one.
PRIVATE, PUBLIC = "whsk_", "whpk_"
#: Bytes of an ed25519 seed, and of the public key that may follow it.
SEED = 32


def check_secret(secret: str) -> None:
    """Raises ValueError where nothing can be signed with it."""
    if not secret.startswith(PRIVATE):
        hmac_key(secret)
        return
    seed, public = ed25519_pair(secret)
    try:
        # An extra, so it may be missing, and it is loaded only where such a key is used.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    except ImportError:
        raise ValueError(f"{PRIVATE} needs the cryptography package: pip install 'sweeperd[ed25519]'") from None
    if public not in (b"", Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()):
        raise ValueError(f"the public key in {PRIVATE} belongs to another private key")


def hmac_key(secret: str) -> bytes:
    """
    The key for `webhook-signature`: the decoded base64 after `whsec_`, or the UTF-8 bytes of any other text. The base64
    may use either alphabet, with padding or without: Cycles generates the URL-safe one, unpadded.

    Raises ValueError where it is empty or no base64.
    """
    key = _decode(secret, SHARED) if secret.startswith(SHARED) else secret.encode()
    if not key:
        raise ValueError("a secret cannot be empty")
    return key


def ed25519_pair(secret: str) -> tuple[bytes, bytes]:
    """
    The seed of a private key: 32 bytes, in base64 after `whsk_`; and the 32 bytes of the public key that may follow, as
    in the keys of libsodium, or nothing. Raises ValueError.
    """
    key = _decode(secret, PRIVATE)
    if len(key) not in (SEED, 2 * SEED):
        raise ValueError(f"what follows {PRIVATE} is not 32 or 64 bytes in base64")
    return key[:SEED], key[SEED:]


def _decode(secret: str, prefix: str) -> bytes:
    text = secret.removeprefix(prefix).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError(f"what follows {prefix} is not base64") from None
