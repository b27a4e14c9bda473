"""Whether the host of an endpoint is known, and whether it accepts a connection."""

import socket
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from urllib.parse import urlsplit

from sweeperd.config import EndpointSettings
from sweeperd.ops.check.findings import CheckFinding, CheckResult, failure, ok

#: How long the name server may take to answer, seconds.
RESOLVE_LIMIT = 5.0


def check_endpoint(endpoint: EndpointSettings, *, connect: float | None = None) -> CheckFinding:
    """
    Whether the endpoint's host is known, and with `connect` (seconds) whether it takes a connection. Nothing is sent.
    """
    level, says, advice = _endpoint(endpoint, connect)
    return CheckFinding(
        level, f"endpoint {endpoint.name}", "resolvable" if connect is None else "connectable", says, advice
    )


def _endpoint(endpoint: EndpointSettings, connect: float | None) -> CheckResult:
    parts = urlsplit(endpoint.url.get_secret_value())
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
    says = f"{host} is {', '.join(addresses[:3])}{' and more' if len(addresses) > 3 else ''}"
    if connect is None:
        return ok(says)
    try:
        socket.create_connection((host, port), timeout=connect).close()
    except OSError as error:
        why = getattr(error, "strerror", None) or error
        return failure(f"{says}, which takes no connection on port {port}: {why}", "see that the receiver runs")
    return ok(f"{says}, and takes connections on port {port}")
