"""How long the certificates of an endpoint are valid: those in its files, and the receiver's own."""

import time
from collections.abc import Iterator

from sweeperd.config import EndpointSettings
from sweeperd.config.tls import PemFile
from sweeperd.ops.check.findings import CheckFinding, CheckResult, failure, ok, unknown_without, warning
from sweeperd.text import rfc3339

#: A certificate that expires sooner is a warning, seconds.
SOON = 30 * 86_400


def check_files(endpoint: EndpointSettings) -> Iterator[CheckFinding]:
    """The certificates in its files. What cannot be read is no certificate to check: the settings do not load then."""
    files = {"client_cert": endpoint.client_cert, "ca": endpoint.ca}
    for key, file in files.items():
        if file is not None and (result := _file(file)) is not None:
            yield CheckFinding(result[0], f"endpoint {endpoint.name}", key, *result[1:])


def check_handshake(endpoint: EndpointSettings, timeout: float) -> CheckFinding:
    """TLS with the receiver, through the endpoint's proxy, as deliveries do it. `timeout`: of each step, seconds."""
    level, says, advice = _handshake(endpoint, timeout)
    return CheckFinding(level, f"endpoint {endpoint.name}", "certificate", says, advice)


def _handshake(endpoint: EndpointSettings, timeout: float) -> CheckResult:
    # Only a check that connects needs what deliveries are made with.
    from sweeperd.delivery.handshake import certificate_expiry  # noqa: PLC0415

    try:
        return expiry_result(certificate_expiry(endpoint, timeout), "the receiver's certificate", "have it renewed")
    except ConnectionError as error:
        return failure(str(error), "see Certificates and proxies in docs/webhooks.md")


def _file(file: PemFile) -> CheckResult | None:
    try:
        # An extra: without it the expiry is not known.
        from cryptography import x509  # noqa: PLC0415
    except ImportError:
        return unknown_without("cryptography", "sweeperd[ed25519]")
    try:
        certificates = x509.load_pem_x509_certificates(file.path.read_bytes())
    except (OSError, ValueError):
        return None
    first = min(certificate.not_valid_after_utc for certificate in certificates)
    return expiry_result(int(first.timestamp()), f"the certificate in {file}", "replace the file, then reload")


def expiry_result(expiry: int, what: str, advice: str) -> CheckResult:
    """What an expiry means. `expiry`: seconds since the epoch, by the clock of this machine."""
    when = rfc3339(expiry * 1000)
    left = expiry - time.time()
    if left <= 0:
        return failure(f"{what} expired at {when}", advice)
    if left < SOON:
        return warning(f"{what} expires at {when}, in {left / 86_400:.0f} days", advice)
    return ok(f"{what} is valid until {when}")
