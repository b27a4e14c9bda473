"""A small world of one configured kind on a real server: seats that are held until a deadline."""

import copy
import tempfile
from pathlib import Path
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.config.templates import FORMS
from sweeperd.store import Keys
from sweeperd.sweep import Decision
from tests.lua.builders import Snapshot, World, frozen_text
from tests.support.builders import configured_kind

ID = b"h1"
DEADLINE = 1_700_000_000_000
TRACE = "0123456789abcdef0123456789abcdef"

SEATS: dict[str, Any] = {
    "name": "seat-hold",
    "index": "seats:ttl",
    "key": "seats:hold:{id}",
    "deadline": "expires_at",
    "active": {"state": "HELD"},
    "ended": {"state": "EXPIRED"},
    "tenant": "customer",
    "give_back": ["HINCRBY seats:{show} free {qty}", "HINCRBY seats:{show} held -{qty} MIN 0"],
    "event": ["show", "qty", "note"],
}
SCRIPT = """
function decide(hash, now)
  if hash.state ~= 'HELD' then return 'skip', hash.state end
  return 'expire'
end
function plan(hash)
  local key = 'seats:' .. hash.show
  return {{'HINCRBY', key, 'free', hash.qty}, {'HINCRBY', key, 'held', '-' .. hash.qty}}, {show = hash.show}
end
"""


def scripted(text: str, **changes: Any) -> dict[str, Any]:
    """The seats as a kind with this script."""
    kind = {key: value for key, value in SEATS.items() if key not in ("active", "give_back", "event")}
    commands = sorted(set(FORMS) - (set() if "channels" in changes else {"PUBLISH"}))
    return kind | {"writes": ["seats:*"], "script": text, "commands": commands} | changes


def settings_of(*kinds: dict[str, Any], reservations: bool = True) -> Settings:
    """Settings with these kinds; a script is given as text."""
    with tempfile.TemporaryDirectory() as directory:
        made = []
        for kind in kinds:
            script = {}
            if "script" in kind:
                Path(directory, f"{kind['name']}.lua").write_text(kind["script"], encoding="utf-8")
                script = {"script": f"file:{kind['name']}.lua"}
            made.append(kind | script)
        raw = {"kinds": made, "reservations": {"enabled": reservations}}
        return Settings.model_validate(raw, context={"directory": Path(directory)})


class Seats:
    """Writes holds, runs the kind's script, and reads back everything."""

    def __init__(self, client: "redis.Redis", kind: dict[str, Any] | None = None, *more: Any, prefix: str = "") -> None:
        self.client: Any = client
        self.keys = Keys(prefix)
        self.settings = settings_of(SEATS if kind is None else kind, *more)
        self.kind = configured_kind(self.settings.kinds[0], self.settings, self.keys)
        self.prefix = prefix.encode()
        self._world = World(client, prefix)

    def key(self, name: str) -> bytes:
        return self.prefix + name.encode()

    def hold(self, entry: bytes = ID, /, **fields: Any) -> None:
        """An overdue hold of 3 seats of the show `s1`. A field given as None is left out."""
        default = {"state": "HELD", "show": "s1", "qty": "3", "customer": "c1", "expires_at": DEADLINE}
        present = {name: value for name, value in (default | fields).items() if value is not None}
        self.client.hset(self.prefix + b"seats:hold:" + entry, mapping=present)
        self.client.zadd(self.kind.index, {entry: DEADLINE})

    def show(self, name: str = "s1", **fields: Any) -> None:
        self.client.hset(self.key(f"seats:{name}"), mapping={"free": 10, "held": 5} | fields)

    def run(self, entry: bytes = ID, *, at: int | None = None, proven: bool = True, defers: bool = False) -> Decision:
        call = self.kind.call(entry, TRACE, proven, defers)
        script = self.kind.script if at is None else frozen_text(at, "frozen", self.kind.script.source)
        return self.kind.decision(entry, script.run(self.client, call))

    def seats(self, name: str = "s1") -> tuple[int, int]:
        free, held = self.client.hmget(self.key(f"seats:{name}"), "free", "held")
        return int(free), int(held)

    def snapshot(self) -> Snapshot:
        return self._world.snapshot()

    def events(self) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in self.client.xrange(self.keys.events)]

    def check_quarantined(self, reason: str, entry: bytes = ID, *, why: str | None = None) -> Decision:
        """The entry is set aside, its hash is marked, and nothing else has changed anywhere."""
        before = self.snapshot()
        decision = self.run(entry)
        assert (decision.outcome, decision.detail) == ("quarantined", reason), decision
        assert why is None or why in decision.why, decision
        after = copy.deepcopy(before)
        remaining = after[self.kind.index]
        del remaining[entry]
        if not remaining:
            del after[self.kind.index]
        now = self.snapshot()
        (set_aside,) = (score for member, score in now[self.kind.quarantine].items() if member == entry)
        after.setdefault(self.kind.quarantine, {})[entry] = set_aside
        key = self.prefix + b"seats:hold:" + entry
        if reason != "WRONG_TYPE":
            after[key] |= {
                b"quarantined_at": b"%d" % set_aside,
                b"quarantine_reason": reason.encode(),
                b"quarantine_detail": now[key][b"quarantine_detail"],
            }
        assert now == after
        return decision
