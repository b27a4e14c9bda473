"""`sweeperd listen`: a receiver to try endpoints with."""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import click
from pydantic import Field

from sweeperd.cli.moment import duration
from sweeperd.cli.options import Exit, fail, json_option
from sweeperd.cli.output import Output
from sweeperd.config.secrets import clean_secret, ed25519_public, resolved
from sweeperd.document import Document, Moment
from sweeperd.runtime.signals import stop_on_signals
from sweeperd.web.receiver import Receiver, Verifier, find_problem, verifier

REFUSED, UNPRINTED = 401, 503


def _verifiers(_: click.Context, option: click.Parameter, texts: Sequence[str]) -> list[Verifier]:
    """The verifiers of --secret or --key."""
    try:
        if option.name == "secrets":
            return [verifier(clean_secret(resolved(text))) for text in texts]
        keys = [resolved(text).strip() for text in texts]
        list(map(ed25519_public, keys))
        return list(map(verifier, keys))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    except ImportError:
        fail("the cryptography package is missing: pip install 'sweeperd[ed25519]'", Exit.FAILED)


class ListenDocument(Document, title="One line of sweeperd listen --json"):
    """A request to the receiver."""

    at: Moment
    verified: bool | None = Field(description="null without --secret and --key.")
    problem: str = Field(description="Why it is not verified; else empty.")
    again: bool = Field(description="Whether an earlier request had the same webhook-id.")
    status: int = Field(description="Of the response.")
    headers: dict[str, str]
    body: Any = Field(description="An event, a list of events, or text that is not JSON.")


@click.command("listen")
@click.option("--host", default="127.0.0.1", help="The address to listen on; 0.0.0.0 is every IPv4 address.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="The port to listen on; 0 is any free one.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="SECRET",
    callback=_verifiers,
    help="A secret of the endpoint: file:PATH, env:NAME or the text.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    callback=_verifiers,
    help="Its public key: whpk_... or file:PATH.",
)
@click.option("--status", type=click.IntRange(200, 599), default=204, help="The status of each response.")
@click.option("--delay", metavar="DURATION", callback=duration, help="Wait before each response, such as 5s.")
@json_option
def command(
    host: str,
    port: int,
    secrets: Sequence[Verifier],
    keys: Sequence[Verifier],
    status: int,
    delay: timedelta | None,
    as_json: bool,
) -> None:
    """
    Receive webhooks, verify their signatures, and print each. For trials: nothing is stored.

    With --secret or --key a request that is not verified gets 401. Exit codes: 0 stopped; 1 the address is not free,
    or the output cannot be written; 2 bad option.
    """
    with stop_on_signals() as stop:
        pause = 0.0 if delay is None else delay.total_seconds()
        verifiers = [*secrets, *keys]
        output, lock, seen = Output(as_json=as_json), threading.Lock(), set[str]()
        closed = list[OSError]()

        def take(body: bytes, headers: Mapping[str, str]) -> int:
            with lock:
                document = _document(body, headers, verifiers, status, seen)
                try:
                    _print(output, document, body)
                except OSError as error:  # nobody reads the output any more, as after `| head -1`
                    closed.append(error)
                    stop.set()
                    return UNPRINTED
            stop.wait(pause)
            return document.status

        try:
            receiver = Receiver((host, port), take)
        except (OSError, UnicodeError, TypeError) as error:  # the latter two for what cannot be a host name
            why = error.strerror if isinstance(error, OSError) else error
            fail(f"{host}:{port} cannot be used: {why}", Exit.FAILED)
        with receiver:
            number = "1 key" if len(verifiers) == 1 else f"{len(verifiers)} keys"
            checks = f"verifying with {number}" if verifiers else "not verifying: no --secret, no --key"
            click.echo(f"sweeperd: listening on {receiver.url}, {checks}", err=True)
            stop.wait()
        if closed:
            raise closed[0]


def _document(
    body: bytes, headers: Mapping[str, str], verifiers: Sequence[Verifier], status: int, seen: set[str]
) -> ListenDocument:
    """`status`: of a response to a verified request. `seen`: the ids so far, to which this one is added."""
    problem = find_problem(verifiers, body, headers) if verifiers else ""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = body.decode(errors="backslashreplace")
    webhook_id = headers.get("webhook-id", "")
    again = webhook_id in seen
    seen |= {webhook_id} if webhook_id and not problem else set()
    return ListenDocument(
        at=time.time() * 1000,
        verified=not problem if verifiers else None,
        problem=problem,
        again=again,
        status=REFUSED if problem else status,
        headers=dict(headers),
        body=content,
    )


def _print(output: Output, document: ListenDocument, body: bytes) -> None:
    if output.as_json:
        output.json(document)
        return
    verdict = "not checked" if document.verified is None else document.problem or "verified"
    received = document.headers.get("webhook-id", ""), "received before" if document.again else ""
    parts = [time.strftime("%H:%M:%S"), f"{verdict}, {document.status}", *received]
    output.say("  ".join(filter(None, parts)), {None: "bold", True: "bold green", False: "bold red"}[document.verified])
    pretty = output.terminal and not isinstance(document.body, str)
    text = json.dumps(document.body, indent=2, ensure_ascii=False) if pretty else body.decode(errors="replace")
    for line in text.splitlines():
        output.say(line)
