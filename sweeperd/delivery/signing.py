"""The signatures of a request: Standard Webhooks 1.0, and the one of Cycles."""

import base64
import hashlib
import hmac
from collections.abc import Sequence


class Signer:
    """Signs the requests to one endpoint with each of its keys, so that a receiver may rotate its secret."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys

    def headers(self, webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The headers with the signatures; none without a key. `timestamp`: seconds since the epoch."""
        if not self._keys:
            return {}
        signed = f"{webhook_id}.{timestamp}.".encode() + body
        signatures = ("v1," + base64.b64encode(_hmac(key, signed)).decode() for key in self._keys)
        return {
            "webhook-signature": " ".join(signatures),
            "X-Cycles-Signature": "sha256=" + _hmac(self._keys[0], body).hex(),
        }


def _hmac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, hashlib.sha256)
