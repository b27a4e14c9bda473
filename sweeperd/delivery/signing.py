"""The signatures of a request: Standard Webhooks 1.0, and the one of Cycles."""

import base64
import hashlib
import hmac
from collections.abc import Sequence

from sweeperd.config.secrets import hmac_key


class Signer:
    """Signs the requests to one endpoint with each of its secrets, so that a receiver may rotate its own."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys = [hmac_key(secret) for secret in secrets]
        # Cycles does not decode a secret, so the receivers of Cycles use its text, `whsec_` included.
        self._cycles_key = secrets[0].encode() if secrets else None

    def headers(self, webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The headers with the signatures; none without a secret. `timestamp`: seconds since the epoch."""
        headers = {}
        if self._keys:
            signed = f"{webhook_id}.{timestamp}.".encode() + body
            signatures = ("v1," + base64.b64encode(_hmac(key, signed)).decode() for key in self._keys)
            headers["webhook-signature"] = " ".join(signatures)
        if self._cycles_key is not None:
            headers["X-Cycles-Signature"] = "sha256=" + _hmac(self._cycles_key, body).hex()
        return headers


def _hmac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, hashlib.sha256)
