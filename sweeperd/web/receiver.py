"""Receives webhooks over HTTP and verifies their signatures, for `sweeperd listen` and the demo."""

import base64
import binascii
import hmac
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from sweeperd.config.secrets import ed25519_pair, ed25519_public, hmac_key
from sweeperd.webhook_keys import PRIVATE, PUBLIC

#: The largest body, bytes, and how old a signature may be, seconds.
BODY_LIMIT, TOLERANCE = 64 * 1024 * 1024, 300

#: Returns the status of the response. The names of the headers are in lower case.
Take = Callable[[bytes, Mapping[str, str]], int]
#: The version of a signature, and whether one is right: of (content, signature).
Verifier = tuple[str, Callable[[bytes, bytes], bool]]


class Receiver:
    """Listens during the `with` block, and calls `take` with each request, from several threads."""

    def __init__(self, address: tuple[str, int], take: Take) -> None:
        """Port 0 is any free port. Raises OSError if the address cannot be used."""
        self._server = _Server(address, _handler(take))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def verifier(key: str) -> Verifier:
    """Of a shared secret, a private or a public key. Raises ValueError, and ImportError without the extra."""
    if not key.startswith((PUBLIC, PRIVATE)):
        shared = hmac_key(key)
        return "v1", lambda content, signature: hmac.compare_digest(hmac.digest(shared, content, "sha256"), signature)
    seed, public_key = (ed25519_pair(key)[0], b"") if key.startswith(PRIVATE) else (b"", ed25519_public(key))
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

    if seed:
        public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    else:
        public = Ed25519PublicKey.from_public_bytes(public_key)

    def is_right(content: bytes, signature: bytes) -> bool:
        try:
            public.verify(signature, content)
        except InvalidSignature:
            return False
        return True

    return "v1a", is_right


def find_problem(verifiers: Iterable[Verifier], body: bytes, headers: Mapping[str, str]) -> str:
    """Why a request is not to be trusted; empty if a signature is right."""
    signatures, timestamp = headers.get("webhook-signature"), headers.get("webhook-timestamp", "")
    if not signatures:
        return "not signed"
    if not timestamp.isdigit() or abs(time.time() - int(timestamp[:15])) > TOLERANCE:
        return f"signed more than {TOLERANCE} s before or after now"
    content = f"{headers.get('webhook-id', '')}.{timestamp}.".encode() + body
    for given in signatures.split():
        version, _, text = given.partition(",")
        try:
            signature = base64.b64decode(text, validate=True)
        except binascii.Error:
            continue
        if any(version == known and is_right(content, signature) for known, is_right in verifiers):
            return ""
    return "the signature is of another secret, or the body was changed"


def _handler(take: Take) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            fits = length.isdigit() and int(length[:15]) <= BODY_LIMIT
            body = self.rfile.read(int(length)) if fits else b""
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(take(body, headers) if fits else 413)
            self.send_header("Content-Length", "0")
            self.end_headers()
            self.close_connection |= not fits

        def log_message(self, *_: object) -> None:
            """The caller prints what matters."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """The sender retries after a broken connection."""
