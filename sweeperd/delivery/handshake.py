"""A TLS handshake with one receiver, without a request: whether it works, and how long the certificate is valid."""

import base64
import contextlib
import functools
import http.client
import os
import ssl
from urllib.parse import unquote, urlsplit

import requests.utils

from sweeperd.config import EndpointSettings
from sweeperd.delivery.http import failed, tls_context
from sweeperd.outbox.attempts import Masker

#: If a receiver refuses the client's certificate, the refusal comes after the handshake, within this time, seconds.
REFUSAL_WAIT = 0.5


def certificate_expiry(endpoint: EndpointSettings, timeout: float) -> int:
    """
    Make a TLS handshake as deliveries do, without a request. Returns when the receiver's certificate expires, seconds
    since the epoch. `timeout`: for each step, seconds. Raises ConnectionError if deliveries would fail.
    """
    try:
        with contextlib.closing(_handshake_connection(endpoint, timeout)) as connection:
            connection.connect()
            sock: ssl.SSLSocket = connection.sock
            expiry = str((sock.getpeercert() or {})["notAfter"])
            sock.settimeout(REFUSAL_WAIT)
            with contextlib.suppress(TimeoutError):  # the receiver has nothing against the client
                sock.recv(1)
            return int(ssl.cert_time_to_seconds(expiry))
    except (OSError, http.client.HTTPException, ValueError) as error:
        mask = functools.partial(Masker(endpoint).text, sent={})
        raise ConnectionError(failed(error, 0, 0, mask).reason) from error


def _handshake_connection(endpoint: EndpointSettings, timeout: float) -> http.client.HTTPSConnection:
    url = urlsplit(endpoint.url.get_secret_value())
    host, port = url.hostname or "", url.port or 443
    named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    context = tls_context(endpoint, named or requests.utils.DEFAULT_CA_BUNDLE_PATH)
    if endpoint.proxy is None:
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    proxy = urlsplit(endpoint.proxy.get_secret_value())
    connection = http.client.HTTPSConnection(proxy.hostname or "", proxy.port or 80, timeout=timeout, context=context)
    headers = {}
    if proxy.username is not None:
        credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers = {"Proxy-Authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}
    connection.set_tunnel(host, port, headers)
    return connection
