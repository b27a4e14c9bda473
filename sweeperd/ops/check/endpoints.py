"""Checks whether an endpoint can be reached over TLS."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from sweeperd.config import EndpointSettings, Settings
from sweeperd.config.certificates import PemFile
from sweeperd.ops.check.findings import CheckFinding, CheckLevel, CheckResult, failure, ok, warning
from sweeperd.outbox.subscription import EventFilter
from sweeperd.text import rfc3339

#: A certificate that expires within this time is a warning, seconds.
SOON = 30 * 86_400
#: How long the name server may take to answer, seconds.
RESOLVE_LIMIT = 5.0
#: How many endpoints are checked side by side.
SIDE_BY_SIDE = 100
#: From this many filters on, they cost more than the request of an event; and the least and the most that an event
#: costs for each of them, µs of CPU time (the figures of docs/decisions/0017-reading-ahead.md).
MANY_FILTERS, FILTER_COSTS = 100, (6, 13)


def check_endpoints(endpoints: Sequence[EndpointSettings], *, connect: float | None = None) -> Iterator[CheckFinding]:
    """Checks endpoints side by side, and yields the findings in order."""
    with ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="check") as pool:
        for found in pool.map(lambda endpoint: list(check_endpoint(endpoint, connect=connect)), endpoints):
            yield from found


def check_settings(settings: Settings) -> Iterator[CheckFinding]:
    """Says what is probably a mistake, and what the filters cost, if they are many."""
    if doubts := settings.doubts:
        yield CheckFinding.of("configuration", "plausible", warning("; ".join(doubts), "correct the endpoint"))
    filtered = sum(not EventFilter(endpoint).open for endpoint in settings.webhooks.endpoints)
    if filtered >= MANY_FILTERS:
        least, most = (filtered * micros / 1000 for micros in FILTER_COSTS)
        costs = f"an event costs {least:.1f} to {most:.1f} ms of CPU time"
        says = f"{filtered} endpoints have one, each with its own consumer group: {costs}"
        yield CheckFinding.of("configuration", "filters", ok(says))


def check_endpoint(endpoint: EndpointSettings, *, connect: float | None = None) -> Iterator[CheckFinding]:
    """
    Checks that the host of the endpoint, or of its proxy, resolves, and how long the certificates are valid. With
    `connect`, a timeout in seconds, it also opens a connection and negotiates TLS. Nothing is sent.
    """
    where = f"endpoint {endpoint.name}"
    host = _host(endpoint, connect)
    yield CheckFinding.of(where, "resolvable" if connect is None else "connectable", host)
    for key, file in {"client_cert": endpoint.client_cert, "ca": endpoint.ca}.items():
        if file is not None and (result := _file(file)) is not None:
            yield CheckFinding.of(where, key, result)
    tls = endpoint.url.get_secret_value().lower().startswith("https:")
    if connect is not None and tls and host[0] is CheckLevel.OK:
        yield CheckFinding.of(where, "certificate", _handshake(endpoint, connect))


def _host(endpoint: EndpointSettings, connect: float | None) -> CheckResult:
    # Imported late, because a check of Redis alone needs no HTTP client.
    from sweeperd.delivery.connect import OutOfTime, Resolver, connect_to  # noqa: PLC0415
    from sweeperd.delivery.handshake import first_stop  # noqa: PLC0415

    try:
        host, port, proxy = first_stop(endpoint)
    except ConnectionError as error:
        return failure(str(error), "correct the variable")
    whose = "" if not proxy else "its proxy " if endpoint.proxy else "the proxy of the environment, "
    try:
        # A resolver for each, so that names that hang do not fail other endpoints.
        found = Resolver().resolve(host, port, time.monotonic() + RESOLVE_LIMIT)
    except OutOfTime:
        return failure(f"{whose}{host} was not resolved within {RESOLVE_LIMIT:g} s", "check the name server")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        return failure(f"{whose}{host} cannot be resolved: {reason}", f"correct {'the proxy' if proxy else 'its url'}")
    addresses = list(dict.fromkeys(str(row[4][0]) for row in found))
    says = f"{whose}{host} is {', '.join(addresses[:3])}{' and more' if len(addresses) > 3 else ''}"
    if connect is None:
        return ok(says)
    try:
        connect_to(found, (), time.monotonic() + connect).close()
    except OSError as error:
        why = getattr(error, "strerror", None) or error
        return failure(f"{says}, which refuses connections on port {port}: {why}", "check that the receiver runs")
    return ok(f"{says}, and accepts connections on port {port}")


def _handshake(endpoint: EndpointSettings, timeout: float) -> CheckResult:
    """Negotiates TLS with the receiver, through the proxy, as a delivery does."""
    from sweeperd.delivery.handshake import certificate_expiry  # noqa: PLC0415

    try:
        return expiry_result(certificate_expiry(endpoint, timeout), "the receiver's certificate", "have it renewed")
    except ConnectionError as error:
        return failure(str(error), "see Certificates and proxies in docs/reference/webhooks.md")


def _file(file: PemFile) -> CheckResult | None:
    """The certificates in a file. None if the file cannot be read: then no settings load either."""
    try:
        # An extra; if the package is missing, the expiry is not known.
        from cryptography import x509  # noqa: PLC0415
    except ImportError:
        return warning("unknown: it needs the cryptography package", "pip install 'sweeperd[ed25519]'")
    try:
        certificates = x509.load_pem_x509_certificates(file.path.read_bytes())
    except (OSError, ValueError):
        return None
    first = min(certificate.not_valid_after_utc for certificate in certificates)
    return expiry_result(int(first.timestamp()), f"the certificate in {file}", "replace the file, then reload")


def expiry_result(expiry: int, what: str, advice: str) -> CheckResult:
    """The result for an expiry, in seconds since the epoch, by the clock of this machine."""
    when = rfc3339(expiry * 1000)
    left = expiry - time.time()
    if left <= 0:
        return failure(f"{what} expired at {when}", advice)
    if left < SOON:
        return warning(f"{what} expires at {when}, in {left / 86_400:.0f} days", advice)
    return ok(f"{what} is valid until {when}")
