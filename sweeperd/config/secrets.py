"""The forms of a webhook's secret: a Standard Webhooks key in base64, or any other text."""

import base64
import binascii

#: A key for HMAC, shared with the receiver.
SHARED = "whsec_"


def hmac_key(secret: str) -> bytes:
    """
    The key for `webhook-signature`: the decoded base64 after `whsec_`, or the UTF-8 bytes of any other text. The base64
    may use either alphabet, with padding or without: Cycles generates the URL-safe one, unpadded.

    Raises ValueError where it is empty or no base64.
    """
    key = decode_key(secret, SHARED) if secret.startswith(SHARED) else secret.encode()
    if not key:
        raise ValueError("a secret cannot be empty")
    return key


def decode_key(secret: str, prefix: str) -> bytes:
    """The bytes of a key that is written as this prefix and base64. Raises ValueError."""
    text = secret.removeprefix(prefix).rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError(f"what follows {prefix} is not base64") from None
