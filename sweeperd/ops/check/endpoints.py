"""Whether the host of an endpoint, or of its proxy, is known and accepts a connection, and its certificates."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from urllib.parse import urlsplit

from sweeperd.config import EndpointSettings
from sweeperd.ops.check.certificates import check_files, check_handshake
from sweeperd.ops.check.findings import CheckFinding, CheckLevel, CheckResult, failure, ok

#: How long the name server may take to answer, seconds.
RESOLVE_LIMIT = 5.0


def check_endpoint(endpoint: EndpointSettings, *, connect: float | None = None) -> Iterator[CheckFinding]:
    """
    Whether the host of the endpoint, or of its proxy, is known, and how long its certificates are valid. With `connect`
    (seconds) also whether it takes a connection, and whether TLS works. Nothing is sent.
    """
    level, says, advice = _endpoint(endpoint, connect)
    check = "resolvable" if connect is None else "connectable"
    yield CheckFinding(level, f"endpoint {endpoint.name}", check, says, advice)
    yield from check_files(endpoint)
    tls = endpoint.url.get_secret_value().lower().startswith("https:")
    if connect is not None and tls and level is CheckLevel.OK:
        yield check_handshake(endpoint, connect)


def _endpoint(endpoint: EndpointSettings, connect: float | None) -> CheckResult:
    parts = urlsplit((endpoint.proxy or endpoint.url).get_secret_value())
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    pool = ThreadPoolExecutor(1, thread_name_prefix="resolve")
    try:
        found = pool.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM).result(RESOLVE_LIMIT)
    except FutureTimeoutError:
        return failure(f"{host} was not resolved within {RESOLVE_LIMIT:g} s", "see that the name server answers")
    except (OSError, UnicodeError) as error:
        return failure(f"{host} cannot be resolved: {getattr(error, 'strerror', None) or error}", "correct its url")
    finally:
        pool.shutdown(wait=False)
    addresses = list(dict.fromkeys(str(row[4][0]) for row in found))
    whose = "its proxy " if endpoint.proxy else ""
    says = f"{whose}{host} is {', '.join(addresses[:3])}{' and more' if len(addresses) > 3 else ''}"
    if connect is None:
        return ok(says)
    try:
        socket.create_connection((host, port), timeout=connect).close()
    except OSError as error:
        why = getattr(error, "strerror", None) or error
        return failure(f"{says}, which takes no connection on port {port}: {why}", "see that the receiver runs")
    return ok(f"{says}, and takes connections on port {port}")
