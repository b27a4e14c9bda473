"""The status page as a single document: markup, style and script, and the headers for safety."""

import base64
import hashlib
from importlib import resources


class StatusPage:
    """
    The page as sent to browsers. The policy names script and style by hash and allows requests to this server alone, so
    a text from Redis can never become code.
    """

    def __init__(self) -> None:
        markup, style, script = (_file(name) for name in ("index.html", "page.css", "page.js"))
        self.body = markup.replace("/* page.css */", style).replace("/* page.js */", script).encode()
        policy = {
            "default-src": "'none'",
            "script-src": _hash(script),
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
