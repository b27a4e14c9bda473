"""Connects to one receiver as deliveries do, through proxy and TLS, but sends no request."""

import contextlib
import functools
import http.client
import ssl
from urllib.parse import urlsplit

import requests
import urllib3.exceptions

from sweeperd.config import EndpointSettings
from sweeperd.delivery.http import Transport, failed
from sweeperd.outbox.masking import Masker

#: If a receiver refuses the client's certificate, the refusal comes after the handshake, within this time, seconds.
REFUSAL_WAIT = 0.5
#: The port of a URL without one.
_PORTS = {"http": 80, "https": 443}
_SOCKS_PORT = 1080


def first_stop(endpoint: EndpointSettings) -> tuple[str, int, bool]:
    """
    The host and the port that deliveries connect to, and whether these are a proxy's: of the endpoint or, as
    HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY say, of the environment. Raises ConnectionError if the proxy cannot
    be used.
    """
    with contextlib.closing(Transport(endpoint, {}, 1, 1.0, 1.0)) as transport:
        try:
            proxy = transport.proxy
        except requests.RequestException as error:
            raise ConnectionError(str(error)) from error
    if proxy is not None:
        host, scheme = proxy.host or "", proxy.scheme or ""
        return host.strip("[]"), proxy.port or _PORTS.get(scheme, _SOCKS_PORT), True
    url = urlsplit(endpoint.url.get_secret_value())
    return url.hostname or "", url.port or _PORTS[url.scheme], False


def certificate_expiry(endpoint: EndpointSettings, timeout: float) -> int:
    """
    Make a TLS handshake as deliveries do, without a request. Returns when the receiver's certificate expires, seconds
    since the epoch. `timeout`: for the connection with the handshake, seconds. Raises ConnectionError if deliveries
    would fail.
    """
    try:
        with (
            contextlib.closing(Transport(endpoint, {}, 1, timeout, timeout)) as transport,
            contextlib.closing(transport.connect()) as connection,
        ):
            sock: ssl.SSLSocket = connection.sock
            expiry = str((sock.getpeercert() or {})["notAfter"])
            sock.settimeout(REFUSAL_WAIT)
            with contextlib.suppress(TimeoutError):  # the receiver has nothing against the client
                sock.recv(1)
            return int(ssl.cert_time_to_seconds(expiry))
    except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError, ValueError) as error:
        mask = functools.partial(Masker(endpoint).text, sent={})
        raise ConnectionError(failed(error, 0, 0, mask).reason) from error
