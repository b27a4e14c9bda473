"""POSTs to one URL through requests' own adapter. What is the same for each request is computed once."""

import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import requests
import requests.adapters
import urllib3

from sweeperd.config import EndpointSettings
from sweeperd.delivery.connection import begin_exchange, bounded
from sweeperd.delivery.tls import tls_context

#: Whether a text is visible ASCII only. Nearly every value of a header is, and then requests refuses none: to ask it
#: about each takes 6 % of the time that a request takes.
_visible = re.compile("[!-~]*").fullmatch


class Transport:
    """
    POSTs to one endpoint over connections that stay open. `fixed`: the headers of each request. Threads may share it.

    It follows no redirect, keeps no cookie and reads no netrc. Proxy and CAs are those of the endpoint; where it has
    none, the ones that the environment named when the transport was made.

    `connect_timeout` limits the connecting, `read_timeout` the response with its body, and both together the whole
    exchange, seconds.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        fixed: Mapping[str, str],
        connections: int,
        connect_timeout: float,
        read_timeout: float,
    ) -> None:
        self._url = url = endpoint.url.get_secret_value()
        self._fixed = dict(fixed)
        self._timeout = urllib3.Timeout(connect=connect_timeout, read=read_timeout)
        self._time_limit = connect_timeout + read_timeout
        self._session = requests.Session()
        proxy = endpoint.proxy and endpoint.proxy.get_secret_value()
        self._environment = self._session.merge_environment_settings(
            url, {"http": proxy, "https": proxy} if proxy else {}, stream=True, verify=None, cert=None
        )
        named = self._environment["verify"]
        bundle = named if isinstance(named, str) else requests.utils.DEFAULT_CA_BUNDLE_PATH
        self._adapter: Any = _Adapter(connections, lambda: tls_context(endpoint, bundle))
        self._pattern: requests.PreparedRequest | None = None
        self._headers: dict[str, str] = {}

    def request(self, headers: dict[str, str], body: bytes) -> requests.PreparedRequest:
        """
        A request with these headers and the fixed ones. Raises requests.RequestException where URL or headers cannot be
        sent, ValueError.
        """
        if self._pattern is None:
            pattern = self._session.prepare_request(
                requests.Request("POST", self._url, headers=self._fixed, data=b"", auth=_url_auth(self._url))
            )
            # A plain dict is faster than requests' dict that ignores case. The names that a request adds are new ones.
            self._headers = dict(pattern.headers)
            self._pattern = pattern
        if not _visible("".join(headers.values())):
            for header in headers.items():
                requests.utils.check_header_validity(header)
        request = requests.PreparedRequest()
        vars(request).update(vars(self._pattern))
        request.headers = self._headers | headers | {"Content-Length": str(len(body))}  # type: ignore[assignment]
        request.body = body
        return request

    def send(self, request: requests.PreparedRequest) -> urllib3.BaseHTTPResponse:
        """
        Send it and wait for the headers of the response. The caller reads the body, closes the response and releases
        its connection. Raises requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError.
        """
        begin_exchange(self._time_limit)
        answer: urllib3.BaseHTTPResponse = self._adapter.send(request, timeout=self._timeout, **self._environment)
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._adapter.close()


class _Adapter(requests.adapters.HTTPAdapter):
    """
    requests' adapter for a single URL. It overrides only methods that requests documents for that.

    All connections share one TLS context, so that no certificate file is read for each of them.
    """

    def __init__(self, connections: int, tls: Callable[[], ssl.SSLContext]) -> None:
        super().__init__(pool_connections=1, pool_maxsize=connections, max_retries=0)
        self._tls = tls
        self._pool: Any = None
        self._target = ""

    def get_connection_with_tls_context(self, request: Any, verify: Any, proxies: Any = None, cert: Any = None) -> Any:
        if self._pool is None:
            pool: Any = super().get_connection_with_tls_context(request, verify, proxies=proxies, cert=cert)
            pool.ConnectionCls = bounded(pool.ConnectionCls)
            self._target = super().request_url(request, proxies)
            self._pool = pool
        return self._pool

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        host, options = super().build_connection_pool_key_attributes(request, verify, cert)
        if host["scheme"] == "https":
            options = {"ssl_context": self._tls(), "cert_reqs": "CERT_REQUIRED"}
        return host, options

    def close(self) -> None:
        """Close the connections now: requests only forgets the pool, which closes when it is collected."""
        if self._pool is not None:
            self._pool.close()

    def cert_verify(self, *_: Any) -> None:
        """Nothing: the TLS context does it."""

    def request_url(self, *_: Any) -> str:
        return self._target

    def build_response(self, _request: Any, response: Any) -> Any:
        """urllib3's own response. requests' wrapper around it is not needed."""
        return response


def _url_auth(url: str) -> Any:
    """
    User and password of the URL; without them, a function that adds nothing. Without any `auth`, requests would read
    ~/.netrc and overwrite the Authorization header of an endpoint.
    """
    user, password = requests.utils.get_auth_from_url(url)
    return (user, password) if user or password else lambda request: request
