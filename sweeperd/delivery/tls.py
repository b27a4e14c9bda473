"""TLS to a receiver: what both sides show each other, and why a connection failed in plain words."""

import ssl
from pathlib import Path

import urllib3.util.ssl_

from sweeperd.config import EndpointSettings
from sweeperd.config.tls import load_pair

#: By OpenSSL's number for the result of a verification.
_VERIFY_REASONS = {
    9: "the receiver's certificate is not valid yet",
    10: "the receiver's certificate has expired",
    **dict.fromkeys((18, 19, 20, 21), "the receiver's certificate is not signed by a CA that is trusted here"),
    **dict.fromkeys((62, 64), "the receiver's certificate is for another host name"),
}
#: By a piece of OpenSSL's name for the error.
_REASONS = {
    "ALERT_CERTIFICATE_REQUIRED": "the receiver demands a client certificate",
    "ALERT_UNKNOWN_CA": "the receiver does not trust the CA of the client certificate",
    "ALERT_CERTIFICATE_EXPIRED": "the receiver says that the client certificate has expired",
    "ALERT_BAD_CERTIFICATE": "the receiver refuses the client certificate",
    "ALERT_CERTIFICATE_REVOKED": "the receiver says that the client certificate is revoked",
    "ALERT_CERTIFICATE_UNKNOWN": "the receiver refuses the client certificate",
    "ALERT_UNSUPPORTED_CERTIFICATE": "the receiver refuses the client certificate",
    "ALERT_HANDSHAKE_FAILURE": "the receiver ends the handshake; it may demand a client certificate",
    "WRONG_VERSION_NUMBER": "the receiver speaks no TLS on this port",
    "HTTP_REQUEST": "the receiver speaks no TLS on this port",
}


def tls_context(endpoint: EndpointSettings, bundle: str) -> ssl.SSLContext:
    """
    For all connections to this endpoint. `bundle`: the file, or the directory, with the CAs that are trusted where the
    endpoint names no `ca` of its own. Raises OSError, ssl.SSLError where a file cannot be loaded any more.
    """
    context = urllib3.util.ssl_.create_urllib3_context()
    trusted = endpoint.ca.path if endpoint.ca else Path(bundle)
    if trusted.is_dir():
        context.load_verify_locations(capath=trusted)
    else:
        context.load_verify_locations(cafile=trusted)
    if endpoint.client_cert is not None:
        load_pair(context, endpoint.client_cert, endpoint.client_key)
    return context


def tls_reason(error: ssl.SSLError) -> str:
    """Why a handshake failed, or why the receiver ended the connection. It names no file."""
    if isinstance(error, ssl.SSLEOFError):
        reason = "the receiver closed the connection"
    elif isinstance(error, ssl.SSLCertVerificationError):
        reason = _VERIFY_REASONS.get(error.verify_code, error.verify_message)
    else:
        name = error.reason or type(error).__name__
        reason = next((words for piece, words in _REASONS.items() if piece in name), name)
    return f"TLS: {reason}"
