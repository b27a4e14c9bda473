"""
Which `Host` headers are served. A web page that an operator has open can point its own name at this port (DNS
rebinding) and read the answers as if they were its own; the browser still sends that page's name as `Host`, so requests
by a name that is not configured are refused. A request by IP address cannot come from such a page.
"""

import ipaddress
from collections.abc import Iterable


class AllowedHosts:
    """`localhost`, every IP address, and the configured `names` (compared without case and without a final dot)."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_canonical(name) for name in names} | {"localhost"}

    def serves(self, header: str | None) -> bool:
        """Whether a request with this `Host` header is answered. None: it has no such header, so it is no browser's."""
        if header is None:
            return True
        host = _canonical(_without_port(header.strip()))
        return host in self._names or _is_address(host)


def _canonical(host: str) -> str:
    return host.lower().removesuffix(".")


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
