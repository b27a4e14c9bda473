"""Asymmetric keys: a new pair, and the public keys of the endpoints for receivers that verify signatures."""

from collections.abc import Iterable
from typing import Any

from sweeperd.config import EndpointSettings
from sweeperd.config.secrets import PRIVATE


class NoCryptography(Exception):
    """The cryptography package, which is an extra, is missing."""


def generate() -> tuple[str, str]:
    """A new private key `whsk_…` and its public key `whpk_…`. Raises NoCryptography."""
    try:
        from sweeperd.delivery import ed25519  # noqa: PLC0415
    except ImportError as error:
        raise NoCryptography from error
    return ed25519.generate()


def jwks(endpoints: Iterable[EndpointSettings]) -> dict[str, Any]:
    """The public keys of all their secrets `whsk_…`, as a JSON Web Key Set. Nothing in it is secret."""
    texts = [secret.get_secret_value() for endpoint in endpoints for secret in endpoint.secrets]
    private = [text for text in texts if text.startswith(PRIVATE)]
    if not private:
        return {"keys": []}
    # Without such a key the cryptography package, which is an extra, may be missing.
    from sweeperd.delivery import ed25519  # noqa: PLC0415

    return ed25519.jwks(private)
