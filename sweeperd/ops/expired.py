"""The archive of expiries as a chain of lines, and the expiries in the event stream."""

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from sweeperd.document import Argument, CommandDocument, Count, Document, Down, Sha256
from sweeperd.outbox.event import ONLY_FOR, Fields, is_expiry, message
from sweeperd.outbox.replays import first_searched, last_searched
from sweeperd.store import streams
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId
from sweeperd.sweep.reservations import kind_of_event
from sweeperd.text import is_meant, rfc3339, whole

#: The key of the hash in each line.
PREVIOUS = "previous_sha256"
#: The hash in the first line of an archive that continues no other.
START = "0" * 64


def canonical(document: dict[str, Any]) -> str:
    """The text that is hashed. Raises ValueError if a number is infinite or NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


class Chain:
    """Makes documents the lines of an archive."""

    def __init__(self, head: str = START) -> None:
        """`head`: the head of the archive that is continued."""
        self.head = head
        self.lines = 0

    def link(self, document: dict[str, Any]) -> str:
        """The document as the next line, in canonical form, without the line's end."""
        line = canonical({**document, PREVIOUS: self.head})
        self.head = hashlib.sha256(line.encode()).hexdigest()
        self.lines += 1
        return line


@dataclass(frozen=True, slots=True)
class ArchiveVerdict:
    #: Lines that were read, the broken one included.
    lines: int
    #: The hash of the last line that is well.
    head: str
    #: The first broken line, from 1; if the end is missing, the number after the last line. None: all is well.
    broken_line: int | None = None
    #: What is wrong; empty if all is well.
    problem: str = ""


def verify(lines: Iterable[bytes], chain_from: str = START, head: str | None = None) -> ArchiveVerdict:
    """
    Follow the chain up to the first broken line. `chain_from`: the head of the archive that this archive continues.
    `head`: the hash of the last line, if the hash is known.
    """
    chain = Chain(chain_from)
    for line in lines:
        number = chain.lines + 1
        try:
            document = _parse(line)
        except ValueError as error:
            return ArchiveVerdict(number, chain.head, number, str(error))
        if document.get(PREVIOUS) != chain.head:
            return ArchiveVerdict(number, chain.head, number, _mismatch(document, number, chain_from))
        del document[PREVIOUS]
        chain.link(document)
    if head is not None and head != chain.head:
        problem = f"the end is missing, or the last line was changed: the head is {chain.head}, not {head}"
        return ArchiveVerdict(chain.lines, chain.head, chain.lines + 1, problem)
    return ArchiveVerdict(chain.lines, chain.head)


def _mismatch(document: dict[str, Any], number: int, chain_from: str) -> str:
    previous = document.get(PREVIOUS)
    if not isinstance(previous, str):
        return f"it has no {PREVIOUS}"
    if number == 1:
        return f"it continues the head {previous[:64]!a}, not {chain_from}: name that with --chain-from"
    if previous == START:
        return "another archive begins here, and does not continue this one"
    return "it does not continue the line before: that was changed, or a line between them is missing"


def _parse(line: bytes) -> dict[str, Any]:
    """Raises ValueError with a text for people."""
    try:
        document = json.loads(line.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        if isinstance(document, dict):
            canonical(document)
            return document
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
    raise ValueError("it is no JSON object")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("it has a key twice")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is not JSON")


class ArchiveDocument(Document, title="sweeperd verify-archive FILE --json"):
    file: Argument
    whole: bool = Field(description="Whether the chain is whole.")
    lines: Count = Field(description="Lines that were read, the broken one included.")
    head: Sha256 = Field(description="The SHA-256 of the last line that is well.")
    broken_line: Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1})] | None = Field(
        description="The first broken line, from 1; one after the last line if the end is missing. null: there is none."
    )
    problem: str = Field(description="What is wrong with it; empty if the chain is whole.")


@dataclass(frozen=True)
class Expiry:
    shard: str
    stream_id: bytes
    #: From the end of the grace to the expiry; None if the event lacks the deadline or the grace.
    lag_ms: int | None
    #: The origin of the shard, a part of event ids; and the fields of the event.
    origin: bytes
    fields: Fields

    @functools.cached_property
    def body(self) -> dict[str, Any]:
        """The body of the webhook. Made at the first use: most of the work, and a count needs no body."""
        body: dict[str, Any] = json.loads(message(self.origin, self.fields).body)
        return body

    @property
    def order(self) -> StreamId:
        """The key to sort by: time, and within one shard the order in the stream."""
        return StreamId.parse(self.stream_id)


@dataclass(eq=False)
class ExpiryReader:
    """
    Reads the events of one shard with `since_ms` <= expired_at < `until_ms` (None: no end), of this tenant and kind
    (None: all). An event that an operator had delivered again is no second expiry. Each `read` goes on after the last
    event of the `read` before.
    """

    shard: Shard
    since_ms: int
    until_ms: int | None
    tenant: str | None
    kind: str | None

    def __post_init__(self) -> None:
        self._first = first_searched(self.since_ms)

    def read(self) -> Iterator[Expiry]:
        """The events that have not been read yet, page by page. Raises redis.RedisError."""
        last = streams.LAST if self.until_ms is None else last_searched(self.shard, self.until_ms)
        for entry, fields in streams.read(self.shard, self.shard.keys.events, self._first, last):
            self._first = streams.after(entry)
            if ONLY_FOR not in fields and is_expiry(fields) and self._asked_for(fields):
                written = whole(fields.get(b"expired_at", b""))
                expired_at_ms = streams.milliseconds(entry) if written is None else written
                if expired_at_ms >= self.since_ms and (self.until_ms is None or expired_at_ms < self.until_ms):
                    yield self._expiry(entry, fields, expired_at_ms)

    def _asked_for(self, fields: dict[bytes, bytes]) -> bool:
        of_tenant = self.tenant is None or is_meant(self.tenant, fields.get(b"tenant", b""))
        return of_tenant and self.kind in (None, kind_of_event(fields))

    def _expiry(self, entry: bytes, fields: dict[bytes, bytes], expired_at_ms: int) -> Expiry:
        deadline, grace = whole(fields.get(b"expires_at", b"")), whole(fields.get(b"grace_ms", b""))
        lag = None if deadline is None or grace is None else expired_at_ms - deadline - grace
        return Expiry(self.shard.name, entry, lag, self.shard.origin, fields)


def retention_gap(shard: Shard, since_ms: int) -> str:
    """
    Why events from `since_ms` on may be missing from the stream; empty if none is missing. Without this an operator
    would read a gap as a time without expiries. Raises redis.RedisError.
    """
    info = streams.info(shard.client, shard.keys.events)
    if info is None:
        return "there is no event stream: nothing has expired here yet, or the stream was deleted"
    # Redis 6.2 does not count the entries that were added.
    if info.get("entries-added") == info["length"] and info["length"]:
        return ""
    first = info["first-entry"]
    if first is None:
        return "" if info.get("entries-added") == 0 else "no event is kept any more"
    oldest_ms = streams.milliseconds(first[0])
    if oldest_ms <= since_ms:
        return ""
    return f"the oldest event that is still kept is of {rfc3339(oldest_ms)}; what expired before is not shown"


class ExpiredCountDocument(CommandDocument, title="sweeperd expired --count --json"):
    count: Count
    down: Down
