"""Certificates for the tests: a CA, and what it issues, as files."""

import datetime
import ssl
from pathlib import Path

import trustme

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """A CA. The files that it writes are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()

    def ca(self, name: str = "ca.pem") -> str:
        """Write the CA's own certificate. Returns the path."""
        return self._write(name, self._ca.cert_pem.bytes())

    def client(
        self, cert: str = "client.pem", key: str = "client-key.pem", not_after: datetime.datetime | None = None
    ) -> tuple[str, str]:
        """Write a certificate and its key. Returns both paths."""
        issued = self._ca.issue_cert("sweeperd@example.com", not_after=not_after)
        return (
            self._write(cert, b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
            self._write(key, issued.private_key_pem.bytes()),
        )

    def server(self, host: str = "localhost", *, expired: bool = False, demands: bool = False) -> ssl.SSLContext:
        """A server's side of TLS. `demands`: a client certificate that this CA has issued."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        issued = self._ca.issue_cert(
            host,
            not_before=LONG_AGO if expired else None,
            not_after=LONG_AGO + datetime.timedelta(days=1) if expired else None,
        )
        issued.configure_cert(context)
        if demands:
            self._ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _write(self, name: str, content: bytes) -> str:
        path = self._directory / name
        path.write_bytes(content)
        return str(path)
