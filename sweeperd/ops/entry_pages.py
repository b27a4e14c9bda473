"""Answers the entry pages of the status page: search, expired, dead letters, quarantine."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import Field

from sweeperd.config import Settings
from sweeperd.document import Count, Document, Moment
from sweeperd.ops.advice import command_line
from sweeperd.ops.quarantine import Quarantine, QuarantineFilter, SetAsideDocument
from sweeperd.ops.search import (
    SEARCH,
    STREAM_ID,
    WEBHOOK_ID,
    BatchDocument,
    EventMatches,
    LookBackDocument,
    MemberDocument,
    ShowDocument,
    find_by_event_id,
    find_sent,
    is_event_id,
    search,
)
from sweeperd.ops.show import Fields, inspect_all
from sweeperd.ops.trouble import ShardTrouble, working_on
from sweeperd.outbox.event import ONLY_FOR, event_id, is_expiry
from sweeperd.store import streams
from sweeperd.store.scripts import accepted, run_commands
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamRow
from sweeperd.sweep.configured import kind_names, kinds_of
from sweeperd.sweep.kind import Kind
from sweeperd.sweep.reservations import kind_of_event, kind_option
from sweeperd.text import candidates, decode, whole

#: Rows of a list, and how long a request waits for the one before it, seconds.
ROWS, PATIENCE = 50, 5.0


class EntryPages:
    """Answers one request per shard at a time, because a request may read many entries. Changes nothing."""

    def __init__(self, settings: Settings, shards: Sequence[Shard], patience: float = PATIENCE) -> None:
        self._settings = settings
        self._turns = {shard.name: (shard, threading.Lock()) for shard in shards}
        self._patience = patience
        self._pages: dict[str, Callable[[Shard, Mapping[str, str]], dict[str, Any]]] = {
            "search": self._search,
            "expired": self._expired,
            "dead-letters": self._dead_letters,
            "quarantine": self._quarantine,
        }

    def answer(self, page: str, asked: Mapping[str, str]) -> dict[str, Any]:
        """
        The document of a page. `asked` has `q` for a search, `id` for an entry, `before` to continue a list, and the
        filters `shard`, `kind`, `tenant`, `endpoint`, `reason`. Raises ValueError if the request is invalid,
        TimeoutError if another request takes too long.
        """
        names = [asked["shard"]] if asked.get("shard") else list(self._turns)
        kinds = kind_names(self._settings)
        if not set(names) <= self._turns.keys():
            raise ValueError("there is no such shard")
        if asked.get("kind") and asked["kind"] not in kinds:
            raise ValueError("there is no such kind")
        if page != "quarantine" and asked.get("before") and not STREAM_ID.fullmatch(asked["before"]):
            raise ValueError("before: not the id of an entry of a stream")
        if page in ("entry", "search") and not asked.get("id" if page == "entry" else "q"):
            raise ValueError("nothing is asked for")
        if page == "entry":
            return self._entry(names, [asked["kind"]] if asked.get("kind") else kinds, asked["id"])
        found, down = self._each(names, lambda shard: self._pages[page](shard, asked))
        return {"shards": [{"shard": shard.name} | told for shard, told in found], "down": down}

    def _entry(self, names: Sequence[str], kinds: Sequence[str], text: str) -> dict[str, Any]:
        found, down = self._each(names, lambda shard: list(inspect_all(self._settings, shard, kinds, text)))
        entries, sent = [entry for _, inspections in found for entry in inspections], list[EventMatches]()
        if not entries and is_event_id(text):
            matches, down = self._each(names, lambda shard: find_by_event_id(self._settings, shard, text))
            sent = [each for _, each in matches]
        return ShowDocument.of(entries, sent, down).as_json() | {"looked": [each.looked.as_json() for each in sent]}

    def _search(self, shard: Shard, asked: Mapping[str, str]) -> dict[str, Any]:
        """Entries with this id, events with this id or tenant, and the event or batch with this webhook id."""
        text = asked["q"]
        meant = candidates(text)
        entries = [
            {"kind": name, "id": decode(entry)}
            for name, kind in kinds_of(self._settings, shard).items()
            for entry in meant
            if not asked.get("before") and _is_known(shard, kind, entry)
        ]
        rows, batches, read, looked = list[StreamRow](), tuple[BatchDocument, ...](), 0, LookBackDocument.of()
        is_event = text.startswith("evt_") and is_event_id(text)
        if not asked.get("before") and WEBHOOK_ID.fullmatch(text):
            rows, batches, read = find_sent(self._settings, shard, text)

        def wanted(fields: Fields) -> bool:
            of = fields.get(b"id"), fields.get(b"tenant")
            return of[0] in meant or of[1] in meant or (is_event and event_id(shard.origin, fields) == text)

        if not (rows or batches):
            rows, looked = search(shard, shard.keys.events, wanted, ROWS, SEARCH - read, asked.get("before", ""))
        return {
            "entries": entries,
            "batches": [batch.as_json() for batch in batches],
            "rows": [MemberDocument.of(shard, row).as_json() for row in rows],
            "looked": looked.as_json(),
        }

    def _expired(self, shard: Shard, asked: Mapping[str, str]) -> dict[str, Any]:
        tenants, kind = _meant(asked, "tenant"), asked.get("kind")

        def wanted(fields: Fields) -> bool:
            of_kind = ONLY_FOR not in fields and is_expiry(fields) and kind in (None, "", kind_of_event(fields))
            return of_kind and (tenants is None or fields.get(b"tenant", b"") in tenants)

        rows, looked = search(shard, shard.keys.events, wanted, ROWS, before=asked.get("before", ""))
        words = ["expired", "--since", "1h", *self._on(shard)]
        return _listed(looked, [MemberDocument.of(shard, row) for row in rows], [words])

    def _dead_letters(self, shard: Shard, asked: Mapping[str, str]) -> dict[str, Any]:
        tenants, endpoints = _meant(asked, "tenant"), _meant(asked, "endpoint")

        def wanted(fields: Fields) -> bool:
            of_tenant = tenants is None or fields.get(b"tenant", b"") in tenants
            return of_tenant and (endpoints is None or fields.get(b"endpoint", b"") in endpoints)

        rows, looked = search(shard, shard.keys.dead_letters, wanted, ROWS, before=asked.get("before", ""))
        chosen = ["--endpoint", asked["endpoint"]] if asked.get("endpoint") else []
        verbs = ["list", "replay"] if chosen else ["list"]
        words = [["dead-letters", verb, *chosen, *self._on(shard)] for verb in verbs]
        return _listed(looked, [LetterRow.of(shard, row) for row in rows], words)

    def _quarantine(self, shard: Shard, asked: Mapping[str, str]) -> dict[str, Any]:
        wanted = QuarantineFilter(reason=asked.get("reason") or None, tenants=_meant(asked, "tenant"))
        kinds, now = kinds_of(self._settings, shard), shard.read_clock()
        listed = []
        for name in [asked["kind"]] if asked.get("kind") else kinds:
            quarantine = Quarantine(shard, kinds[name], ROWS)
            entries, before = quarantine.newest(wanted, ROWS, asked.get("before", ""))
            words = ["quarantine", "list", *kind_option(name), *self._on(shard)]
            listed.append(
                {
                    "kind": name,
                    "size": quarantine.size(),
                    "rows": [SetAsideDocument.of(name, entry, now).as_json() for entry in entries],
                    "before": before,
                    "commands": _lines([words]),
                }
            )
        return {"kinds": listed}

    def _on(self, shard: Shard) -> tuple[str, ...]:
        """The option that names the shard in a command."""
        return ("--shard", shard.name) if len(self._turns) > 1 else ()

    def _each(
        self, names: Sequence[str], read: Callable[[Shard], Any]
    ) -> tuple[list[tuple[Shard, Any]], list[dict[str, str]]]:
        """Reads all shards in parallel. Returns the results, and the shards that could not be read."""

        def one(name: str) -> tuple[Shard, Any]:
            shard, turn = self._turns[name]
            if not turn.acquire(timeout=self._patience):
                raise TimeoutError(f"another request for shard {name} is still running; try again")
            try:
                with working_on(shard):
                    return shard, read(shard)
            except ShardTrouble as trouble:
                return shard, trouble
            finally:
                turn.release()

        with ThreadPoolExecutor(len(names), thread_name_prefix="entries") as pool:
            found = list(pool.map(one, names))
        down = [read.as_dict() for _, read in found if isinstance(read, ShardTrouble)]
        return [each for each in found if not isinstance(each[1], ShardTrouble)], down


class LetterRow(MemberDocument):
    """A dead letter."""

    letter: str = Field(description="The id of the dead letter.")
    endpoint: str
    reason: str
    attempts: Count = Field(description="Hand-overs, each with up to `webhooks.attempts` requests.")
    given_up_at: Moment

    @classmethod
    def of(cls, shard: Shard, row: StreamRow) -> "LetterRow":
        entry, fields = row
        return cls.made_of(
            MemberDocument.of(shard, (fields.get(b"event", entry), fields)),
            letter=decode(entry),
            endpoint=decode(fields.get(b"endpoint", b"")),
            reason=decode(fields.get(b"reason", b"")),
            attempts=whole(fields.get(b"attempts", b"")) or 0,
            given_up_at=streams.milliseconds(entry),
        )


def _is_known(shard: Shard, kind: Kind, entry: bytes) -> bool:
    scores = [("ZSCORE", key, entry) for key in (kind.index, kind.quarantine)]
    exists, *found = accepted(run_commands(shard.client, [("EXISTS", kind.entry_key(entry)), *scores]))
    return (bool(exists) and kind.form != "member") or any(score is not None for score in found)


def _listed(looked: LookBackDocument, rows: Sequence[Document], words: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {"rows": [row.as_json() for row in rows], "looked": looked.as_json(), "commands": _lines(words)}


def _meant(asked: Mapping[str, str], name: str) -> tuple[bytes, ...] | None:
    """The possible meanings of a filter; None if it was not given."""
    return tuple(candidates(asked[name])) if asked.get(name) else None


def _lines(commands: Iterable[Sequence[str]]) -> list[str]:
    """The commands for a shell, without those that cannot be copied."""
    return list(dict.fromkeys(filter(None, (command_line(*words) for words in commands))))
