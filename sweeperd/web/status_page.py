"""The pages, each as a single document: markup, style and script, and the headers for safety."""

import base64
import hashlib
from importlib import resources


class StatusPage:
    """
    A page as sent to browsers, from a file of markup and a file of script: the status page, or the pages about entries.
    The policy names script and style by hash and allows requests to this server alone, so a text from Redis can never
    become code.
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
