"""The signatures of a request: Standard Webhooks 1.0, symmetric and asymmetric, and the one of Cycles."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence

from sweeperd.config.secrets import PRIVATE, hmac_key


class Signer:
    """Signs the requests to one endpoint with each of its secrets, so that a receiver may rotate its own."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._schemes = [_scheme(secret) for secret in secrets]
        shared = [secret for secret in secrets if not secret.startswith(PRIVATE)]
        # Cycles does not decode a secret, so the receivers of Cycles use its text, `whsec_` included.
        self._cycles_key = shared[0].encode() if shared else None

    def headers(self, webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The headers with the signatures; none without a secret. `timestamp`: seconds since the epoch."""
        headers = {}
        if self._schemes:
            signed = f"{webhook_id}.{timestamp}.".encode() + body
            headers["webhook-signature"] = " ".join(
                f"{version},{base64.b64encode(sign(signed)).decode()}" for version, sign in self._schemes
            )
        if self._cycles_key is not None:
            headers["X-Cycles-Signature"] = "sha256=" + hmac.digest(self._cycles_key, body, hashlib.sha256).hex()
        return headers


def _scheme(secret: str) -> tuple[str, Callable[[bytes], bytes]]:
    """The version of the signature, and the function that makes it."""
    if secret.startswith(PRIVATE):
        # Only an endpoint with such a key needs the cryptography package, which is an extra.
        from sweeperd.delivery.ed25519 import private_key  # noqa: PLC0415

        return "v1a", private_key(secret).sign
    key = hmac_key(secret)
    return "v1", lambda signed: hmac.digest(key, signed, hashlib.sha256)
