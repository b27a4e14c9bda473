"""What is hidden in a request that is shown, and in a response that repeats secrets."""

import base64

import pytest

from sweeperd.config import EndpointSettings
from sweeperd.delivery.masking import HIDDEN, SHORTEST_HIDDEN, Masker

SIGNATURE = "v1," + "c2lnbmF0dXJlIG9mIHRoZSB0ZXN0cw=="


def masker(url: str = "https://receiver.example/hook", **endpoint: object) -> Masker:
    return Masker(EndpointSettings.model_validate({"name": "hook", "url": url, **endpoint}))


def basic(credentials: str) -> str:
    return base64.b64encode(credentials.encode()).decode()


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("Webhook-Id", "evt_1", "evt_1"),
        ("Content-Type", "application/json", "application/json"),
        ("Authorization", "Basic dXNlcjpwYXNz", HIDDEN),
        ("X-Key", "hush-hush", HIDDEN),
        ("Webhook-Signature", f"{SIGNATURE} v1a,0123456789", f"{SIGNATURE[:12]}… v1a,01234567…"),
        ("x-cycles-signature", "sha256=0123456789", "sha256=01234…"),
    ],
)
def test_a_header_is_shown_where_it_is_no_secret(name: str, value: str, shown: str) -> None:
    assert masker().header(name, value) == shown


@pytest.mark.parametrize(
    "secret",
    [
        "pass-word",
        "token=in-the-query",
        "proxy-word",
        basic("proxy-user:proxy-word"),
        "key-of-the-test",
        "hush-hush",
        SIGNATURE,
    ],
)
def test_a_secret_is_hidden_in_a_response_that_repeats_it(secret: str) -> None:
    masked = masker(
        "https://user:pass-word@receiver.example/hook?token=in-the-query",
        proxy="http://proxy-user:proxy-word@proxy.example:3128",
        secrets=["key-of-the-test"],
    )
    sent = {"X-Key": "hush-hush", "webhook-signature": f"v1,b3RoZXI= {SIGNATURE}", "webhook-id": "evt_1"}
    assert masked.text(f"evt_1: <{secret}> is refused", sent) == f"evt_1: <{HIDDEN}> is refused"


@pytest.mark.parametrize("place", ["url", "proxy"])
def test_a_password_with_escapes_is_hidden_as_it_is_written_and_as_it_is_sent(place: str) -> None:
    with_password = "http://user:p%40ss@server.example/"
    masked = masker(with_password) if place == "url" else masker(proxy=with_password)
    assert masked.text("p%40ss and p@ss", {}) == f"{HIDDEN} and {HIDDEN}"


@pytest.mark.parametrize("credentials", [":proxy-word", "proxy-user:"])
def test_half_of_a_proxys_credentials_is_enough_to_hide_them(credentials: str) -> None:
    masked = masker(proxy=f"http://{credentials}@proxy.example")
    assert masked.text(f"Basic {basic(credentials)}", {}) == f"Basic {HIDDEN}"


def test_what_is_too_short_for_a_secret_is_shown() -> None:
    short, long = "k" * (SHORTEST_HIDDEN - 1), "q" * SHORTEST_HIDDEN
    assert masker().text(f"{short} {long}", {"X-Short": short, "X-Long": long}) == f"{short} {HIDDEN}"


def test_a_secret_that_is_a_part_of_another_leaves_nothing_of_it() -> None:
    sent = {"X-One": "hush", "X-Two": "hush-hush-hush"}
    assert masker().text("hush-hush-hush", sent) == HIDDEN


def test_a_body_is_shown_unless_it_is_compressed() -> None:
    sent = {"X-Key": "hush-hush"}
    assert masker().body(b"", sent, {"Content-Encoding": "gzip"}) == ""
    assert masker().body(b"no: hush-hush \xff", sent, {}) == f"no: {HIDDEN} \\xff"
    assert masker().body(b"\x1f\x8b", sent, {"Content-Encoding": "gzip"}) == "(gzip, not shown)"
