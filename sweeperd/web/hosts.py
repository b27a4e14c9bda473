"""Decides by Host header and client address whom the HTTP server answers."""

import contextlib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

#: Headers of proxies, which make a client remote. No header makes a client local.
_PROXIED = ("HTTP_FORWARDED", "HTTP_VIA", "HTTP_X_REAL_IP", "HTTP_X_CLIENT_IP", "HTTP_TRUE_CLIENT_IP")


class AllowedHosts:
    """
    Allows `localhost`, every IP address and the configured names. A name without dots also matches the Kubernetes
    Service of this name as NAME.NAMESPACE.svc and NAME.NAMESPACE.svc.cluster.local, but not as NAME.NAMESPACE, which
    may be a public domain.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_canonical(name) for name in names}

    def serves(self, header: str | None) -> bool:
        """Whether to answer a request with this `Host` header. Browsers always send one."""
        if header is None:
            return True
        host = _host(header)
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return True
        service, _, place = host.partition(".")
        namespace, _, domain = place.partition(".")
        is_service = bool(namespace) and domain in ("svc", "svc.cluster.local")
        return host == "localhost" or host in self._names or (is_service and service in self._names)


def is_local(environ: Mapping[str, Any]) -> bool:
    """Whether a request comes from a loopback address, addresses `localhost` or a loopback address, and no proxy."""
    if any(name in _PROXIED or name.startswith(("HTTP_X_FORWARDED", "HTTP_X_ENVOY")) for name in environ):
        return False
    header = environ.get("HTTP_HOST")
    host = "localhost" if header is None else _host(header)
    return _is_loopback(environ.get("REMOTE_ADDR", "")) and (host == "localhost" or _is_loopback(host))


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    return found.is_loopback


def _host(header: str) -> str:
    name = header.strip()
    return _canonical(name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0])


def _canonical(host: str) -> str:
    return host.lower().removesuffix(".")
