"""A TLS handshake with a receiver as its deliveries make it, without a request."""

import base64
import contextlib
import functools
import http.client
import os
import ssl
from urllib.parse import unquote, urlsplit

import requests.utils

from sweeperd.config import EndpointSettings
from sweeperd.delivery.masking import Masker
from sweeperd.delivery.result import failed
from sweeperd.delivery.tls import tls_context

#: A receiver that refuses the client's certificate says so after the handshake, within this time, seconds.
REFUSAL_WAIT = 0.5


def certificate_expiry(endpoint: EndpointSettings, timeout: float) -> int:
    """
    When the receiver's certificate expires, seconds since the epoch. `timeout`: for each step, seconds. Raises
    ConnectionError with the reason where its deliveries would fail.
    """
    try:
        return _certificate_expiry(endpoint, timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        mask = functools.partial(Masker(endpoint).text, sent={})
        raise ConnectionError(failed(error, 0, 0, mask).reason) from error


def _certificate_expiry(endpoint: EndpointSettings, timeout: float) -> int:
    url = urlsplit(endpoint.url.get_secret_value())
    host, port = url.hostname or "", url.port or 443
    named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    context = tls_context(endpoint, named or requests.utils.DEFAULT_CA_BUNDLE_PATH)
    if endpoint.proxy is None:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    else:
        proxy = urlsplit(endpoint.proxy.get_secret_value())
        place = proxy.hostname or "", proxy.port or 80
        connection = http.client.HTTPSConnection(*place, timeout=timeout, context=context)
        headers = {}
        if proxy.username is not None:
            credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
            headers = {"Proxy-Authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}
        connection.set_tunnel(host, port, headers)
    try:
        connection.connect()
        sock: ssl.SSLSocket = connection.sock
        expiry = str((sock.getpeercert() or {})["notAfter"])
        sock.settimeout(REFUSAL_WAIT)
        with contextlib.suppress(TimeoutError):  # it has nothing against the client
            sock.recv(1)
        return int(ssl.cert_time_to_seconds(expiry))
    finally:
        connection.close()
