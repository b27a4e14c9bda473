"""A forward proxy for the tests: it passes plain requests on, and opens tunnels (CONNECT)."""

import base64
import contextlib
import http.client
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class ForwardProxy:
    """
    Listens on a free port of loopback while the `with` block lasts. `credentials` (`user:password`): what it demands.
    """

    def __init__(self, credentials: str = "") -> None:
        self.credentials = credentials
        #: The request lines that it has passed on.
        self.passed: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def url(self, credentials: str = "") -> str:
        return f"http://{credentials and credentials + '@'}127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "ForwardProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler below has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_CONNECT(self) -> None:
                if not self._admitted():
                    return
                host, _, port = self.path.rpartition(":")
                try:
                    upstream = socket.create_connection((host, int(port)), 5)
                except OSError:
                    self.send_error(502)
                    return
                self.send_response(200)
                self.end_headers()
                self.close_connection = True
                with upstream:
                    back = threading.Thread(target=_pump, args=(upstream, self.connection), daemon=True)
                    back.start()
                    _pump(self.connection, upstream)
                    back.join()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not self._admitted():
                    return
                target = urlsplit(self.path)
                upstream = http.client.HTTPConnection(target.hostname or "", target.port, timeout=5)
                headers = {k: v for k, v in self.headers.items() if not k.lower().startswith("proxy-")}
                upstream.request("POST", target.path, body, headers)
                answer = upstream.getresponse()
                content = answer.read()
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                upstream.close()

            def _admitted(self) -> bool:
                wanted = "Basic " + base64.b64encode(proxy.credentials.encode()).decode()
                if proxy.credentials and self.headers.get("Proxy-Authorization") != wanted:
                    self.send_response(407, "Proxy Authentication Required")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return False
                proxy.passed.append(self.requestline)
                return True

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
