"""What is hidden in a request that is shown, and in a response that repeats secrets."""

import base64
import html
import json
import re
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sweeperd.config import EndpointSettings
from sweeperd.config.secrets import clean_secret
from sweeperd.outbox.masking import ANSWER, HIDDEN, SHORTEST_HIDDEN, Masker

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


def test_a_secret_is_hidden_if_the_response_is_nothing_else() -> None:
    assert masker().text("hush", {"X-Key": "hush"}) == HIDDEN


@pytest.mark.parametrize("where", ["configured", "sent"])
@pytest.mark.parametrize(
    ("value", "echo", "shown"),
    [
        ("session=hush-hush; theme=dark", "hush-hush or dark", f"{HIDDEN} or {HIDDEN}"),
        ("hush-one hush-two", "hush-one or hush-two", f"{HIDDEN} or {HIDDEN}"),
        ("Bearer hush-hush", "Bearer: hush-hush", f"Bearer: {HIDDEN}"),
        ("Bearer aHVzaC1odXNo", "aHVzaC1odXNo or hush-hush", f"{HIDDEN} or hush-hush"),
        ("Basic hush", "Basic: hush", f"Basic: {HIDDEN}"),
        ("Basic", "no Basic", f"no {HIDDEN}"),
    ],
)
def test_the_parts_of_a_header_are_hidden_each_by_itself(where: str, value: str, echo: str, shown: str) -> None:
    headers = {"X-Key": value}
    masked, sent = (masker(), headers) if where == "sent" else (masker(headers=headers), {})
    assert masked.text(echo, sent) == shown


@pytest.mark.parametrize("before", ["accepted: ", ""])
@pytest.mark.parametrize(("end", "shown"), [("hush-h", HIDDEN), ("hus", "hus"), ("thanks", "thanks")])
def test_only_the_beginning_of_a_secret_is_hidden_at_the_end_of_a_text_that_was_cut(
    before: str, end: str, shown: str
) -> None:
    assert masker().text(f"{before}{end}", {"X-Key": "hush-hush"}, cut=True) == f"{before}{shown}"


def test_a_secret_that_is_a_part_of_another_leaves_nothing_of_it() -> None:
    sent = {"X-One": "hush", "X-Two": "hush-hush-hush"}
    assert masker().text("hush-hush-hush", sent) == HIDDEN


def test_a_body_is_shown_unless_it_is_compressed() -> None:
    sent = {"X-Key": "hush-hush"}
    assert masker().body(b"", sent, {"Content-Encoding": "gzip"}) == ""
    assert masker().body(b"no: hush-hush \xff", sent, {}) == f"no: {HIDDEN} \\xff"
    assert masker().body(b"no: h\xfcsh-h\xfcsh", {"X-Key": "h\xfcsh-h\xfcsh"}, {}) == f"no: {HIDDEN}", (
        "as headers are sent"
    )
    assert masker().body(b"\x1f\x8b", sent, {"Content-Encoding": "gzip"}) == "(gzip, not shown)"


# ---- whatever form the receiver gives it


def is_clean(secret: str) -> bool:
    """Whether a key of this text is used as it stands. White space and quotes around a key are not a part of it."""
    try:
        return clean_secret(secret) == secret
    except ValueError:
        return False


#: What a header can hold; the values of a URL are this, escaped.
SECRETS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_categories=["C"]), min_size=4).filter(
    is_clean
)
ANYTHING = st.text(st.characters(exclude_categories=["C"]), min_size=4).filter(is_clean)


def lower(text: str) -> str:
    """Percent-encoded with lower-case digits."""
    return re.sub("%..", lambda escape: escape[0].lower(), quote(text, safe=""))


#: What Go escapes in JSON beside what every language does.
GO = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}
ESCAPES: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "json": lambda text: json.dumps(text)[1:-1],
    "json in UTF-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "json with slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "percent": lambda text: quote(text, safe=""),
    "percent, lower": lower,
    "percent with plus": quote_plus,
    "percent in json": lambda text: json.dumps(quote(text, safe=""))[1:-1],
    "html": html.escape,
    "json of Go": lambda text: json.dumps(text, ensure_ascii=False)[1:-1].translate(GO),
}
BASE64: dict[str, Callable[[bytes], str]] = {
    "standard": lambda raw: base64.b64encode(raw).decode(),
    "standard, unpadded": lambda raw: base64.b64encode(raw).decode().rstrip("="),
    "url-safe": lambda raw: base64.urlsafe_b64encode(raw).decode(),
    "url-safe, unpadded": lambda raw: base64.urlsafe_b64encode(raw).decode().rstrip("="),
    "standard, in json": lambda raw: base64.b64encode(raw).decode().replace("/", "\\/"),
    "standard, in percent": lambda raw: quote(base64.b64encode(raw).decode(), safe=""),
}
PLACES: dict[str, Callable[[str], Masker]] = {
    "query": lambda secret: masker(f"https://receiver.example/?a=b&token={quote(secret, safe='')}"),
    "query without a name": lambda secret: masker(f"https://receiver.example/?{quote(secret, safe='')}"),
    "user": lambda secret: masker(f"https://{quote(secret, safe='')}@receiver.example/"),
    "password": lambda secret: masker(f"https://me:{quote(secret, safe='')}@receiver.example/"),
    "proxy": lambda secret: masker(proxy=f"http://me:{quote(secret, safe='')}@proxy.example/"),
    "key": lambda secret: masker(secrets=["another", f"{secret}"]),
}
HEADER_PLACES: dict[str, Callable[[str], Masker]] = {
    "header": lambda secret: masker(headers={"X-Key": secret}),
    "bearer": lambda secret: masker(headers={"Authorization": f"Bearer {secret}"}),
    "basic": lambda secret: masker(headers={"Authorization": f"Basic {basic(f'me:{secret}')}"}),
}


def hides(masked: Masker, echo: str) -> None:
    assert masked.text(f"\1 {echo} \1", {}) == f"\1 {HIDDEN} \1"


@given(SECRETS, st.sampled_from([*PLACES, *HEADER_PLACES]), st.sampled_from([*ESCAPES, *BASE64]))
def test_a_secret_is_hidden_in_every_form(secret: str, place: str, form: str) -> None:
    assume(place != "key" or not secret.startswith(("whsec_", "whsk_")))
    echo = ESCAPES[form](secret) if form in ESCAPES else BASE64[form](secret.encode())
    hides((PLACES | HEADER_PLACES)[place](secret), echo)


@given(ANYTHING, st.sampled_from([*PLACES]), st.sampled_from([*ESCAPES]))
def test_a_secret_of_any_language_is_hidden(secret: str, place: str, form: str) -> None:
    # The settings strip a key.
    assume(place != "key" or (secret == secret.strip() and not secret.startswith(("whsec_", "whsk_"))))
    hides(PLACES[place](secret), ESCAPES[form](secret))


@given(SECRETS, st.sampled_from(["password", "proxy", "basic"]), st.sampled_from([*BASE64]), st.booleans())
def test_user_and_password_are_hidden_as_base64(secret: str, place: str, form: str, latin: bool) -> None:
    raw = f"me:{secret}".encode("latin-1" if latin else "utf-8")
    hides((PLACES | HEADER_PLACES)[place](secret), BASE64[form](raw))


@given(SECRETS, st.integers(min_value=SHORTEST_HIDDEN), st.sampled_from([*ESCAPES]))
def test_the_beginning_of_a_secret_at_the_end_of_a_text_that_was_cut_is_hidden(
    secret: str, kept: int, form: str
) -> None:
    echo = ESCAPES[form](secret)[:kept]
    shown = masker(headers={"X-Key": secret}).text(f"\1{echo}", {}, cut=True)
    left = shown.removeprefix("\1").removesuffix(HIDDEN)
    assert len(left.encode()) < SHORTEST_HIDDEN * 12  # 12: two JSON escapes of one character


@pytest.mark.parametrize(
    ("echo", "shown"),
    [
        ("pin=12&of=all", "pin=***&of=all"),
        ('{"PIN": "12", "n": 12}', '{"PIN": "***", "n": 12}'),
        ('{\\"pin\\":\\"12\\"}', '{\\"pin\\":\\"***\\"}'),
        ("pin%3D12", "pin%3D***"),
        ("HTTP_X_NO: 7", "HTTP_X_NO: ***"),
        ("pin=123, 12 or 7", "pin=123, 12 or 7"),
    ],
)
def test_a_short_value_is_hidden_beside_its_name(echo: str, shown: str) -> None:
    assert masker("https://receiver.example/?pin=12&page=list", headers={"X-No": "7"}).text(echo, {}) == shown


def test_masking_takes_less_than_a_millisecond() -> None:
    """4 KB and ten secrets, one of them of 1 KB: the receiver chooses how much it answers."""
    headers = {f"X-Key-{number}": f"secret/{number}+" * 3 for number in range(7)} | {"X-Long": "long" * 256}
    masked = masker(
        "https://user:p%40ssword@receiver.example/?token=in-the-query", headers=headers, secrets=["key-of-the-test"]
    )
    body = b"no secret at all: " * 240

    def seconds() -> float:
        began = time.thread_time()
        assert masked.body(body, headers, {}, cut=True) == body.decode()
        return time.thread_time() - began

    assert min(seconds() for _ in range(20)) < 0.001


def test_of_an_answer_its_beginning_is_recorded_without_secrets() -> None:
    sent = {"X-Key": "hush-hush"}
    assert masker().answer(b"no: hush-hush " + b"x" * 5000, sent, {}) == f"no: {HIDDEN} ".ljust(ANSWER, "x")
    assert masker().answer(b"x" * (4 * ANSWER - 6) + b"hush-hush", sent, {}) == "x" * ANSWER
    assert masker().answer(b"hush-hush" * 1000, sent, {}) == HIDDEN
    whole = "x" * (ANSWER - 4) + "hush"
    assert masker().answer(b"", sent, {"Content-Encoding": whole}) == ""
    assert masker().body(b"\x1f\x8b", sent, {"Content-Encoding": whole}) == f"({whole}, not shown)"
    wide = "\U0001f600" * (ANSWER - 1)  # four bytes each
    assert masker().answer(f"{wide}hush".encode(), sent, {}) == f"{wide}h"
