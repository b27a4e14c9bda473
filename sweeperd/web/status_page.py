"""Assembles each web page as one document with its security headers."""

import base64
import hashlib
from importlib import resources


class HtmlPage:
    """
    The status page or the entry pages. Its policy allows script and style by hash, and requests to this server only, so
    text from Redis never runs as code.
    """

    def __init__(self, markup: str = "index.html", script: str = "page.js") -> None:
        parts, style = _file(markup), _file("page.css")
        code = f'"use strict";\n(() => {{\n{_file("common.js")}{_file(script)}}})();\n'
        self.body = parts.replace("/* page.css */", style).replace("/* script */", code).encode()
        policy = {
            "default-src": "'none'",
            "script-src": _hash(code),
            "style-src": _hash(style),
            "connect-src": "'self'",
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        self.headers = [
            ("Content-Security-Policy", "; ".join(f"{name} {value}" for name, value in policy.items())),
            ("X-Frame-Options", "DENY"),
        ]


def _file(name: str) -> str:
    return resources.files("sweeperd.web").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
