"""The replays of one shard that have begun and not ended: notes in `sweeperd:groups`, and their consumer groups."""

from typing import cast

import redis

from sweeperd.delivery.groups import WAITING
from sweeperd.delivery.outbox import Outbox
from sweeperd.delivery.replay import GROUP_PREFIX, ReplayNote, ReplayProgress, replay_group
from sweeperd.store import streams
from sweeperd.store.errors import is_missing_group
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.store.streams import StreamId


class ReplayStore:
    """Every method raises redis.RedisError."""

    def __init__(self, shard: Shard) -> None:
        self._client = shard.client
        self._keys = [shard.keys.events, shard.keys.groups]
        self._begin = Script("delivery/begin_replay")
        self._end = Script("delivery/end_replay")
        self._cancel = Script("delivery/cancel_replay")

    def read(self, endpoint: str) -> ReplayNote | None:
        """The replay to this endpoint; None: there is none."""
        found = self._client.hget(self._keys[1].decode(), replay_group(endpoint))
        return _parse(found) if isinstance(found, bytes) else None

    def all(self) -> dict[str, ReplayNote]:
        """Each replay by its endpoint."""
        fields = cast(dict[bytes, bytes], self._client.hgetall(self._keys[1].decode()))
        notes = [_parse(value) for group, value in fields.items() if group.startswith(GROUP_PREFIX.encode())]
        return {note.endpoint: note for note in notes if note is not None}

    def begin(self, note: ReplayNote) -> str:
        """
        Begin it, at maxmemory too. Returns `begun`; `running`: another one to this endpoint has not ended; `gone`: its
        first event is in the stream no more.
        """
        args = [note.group, str(note.start), note.first, note.model_dump_json()]
        return cast(bytes, self._begin.run(self._client, Call(self._keys, args))).decode()

    def end(self, note: ReplayNote, *, by_force: bool = False) -> bool:
        """
        Remove its group and its note. False where it has ended already, or has pending events and not `by_force`. Call
        it once its group has been given all of its events.
        """
        call = Call(self._keys, [note.group, note.made_at, int(by_force)])
        return bool(self._end.run(self._client, call))

    def cancel(self, note: ReplayNote) -> bool:
        """Have all processes leave it alone. False where it has ended already."""
        cancelled = note.model_copy(update={"cancelled": True}).model_dump_json()
        return bool(self._cancel.run(self._client, Call(self._keys[1:], [note.group, note.made_at, cancelled])))

    def position(self, note: ReplayNote) -> StreamId | None:
        """The last event that its group has been given; None: the group is not there."""
        info = streams.groups(self._client, self._keys[0]).get(note.group.encode())
        return None if info is None else StreamId.parse(info["last-delivered-id"])

    def exhausted(self, note: ReplayNote) -> bool:
        """Whether its group has been given all of its events."""
        position = self.position(note)
        if position is None:
            return False
        last = bytes(StreamId.parse(note.last))
        return not self._client.xrange(self._keys[0], streams.after(bytes(position)), last, 1)

    def progress(self, note: ReplayNote) -> ReplayProgress:
        """How far it is. One whose group is lost has all of its events left: with a new group it begins anew."""
        position, found = self.position(note), self.read(note.endpoint)
        if found is None or found.made_at != note.made_at:
            return ReplayProgress()
        if position is None:
            return ReplayProgress(False, note.events)
        untaken = 0 if self.exhausted(note) else max(1, note.left(position))
        try:
            summary = self._client.xpending(self._keys[0], note.group)
        except redis.ResponseError as error:
            if is_missing_group(error):
                return ReplayProgress()  # it has ended since its note was read
            raise
        waiting = sum(row["pending"] for row in summary["consumers"] if row["name"] in WAITING)
        left = min(note.events, untaken + summary["pending"])  # what is not taken is an estimate
        return ReplayProgress(False, left, waiting)


def end_cancelled(store: ReplayStore, outbox: Outbox, note: ReplayNote) -> bool:
    """
    End a cancelled replay, unless a process that lives has events of it in hand. Returns whether it has ended. Raises
    redis.RedisError.
    """
    try:
        in_hand = outbox.in_hand(note.group)
    except redis.ResponseError as error:
        if not is_missing_group(error):
            raise
        in_hand = False
    if in_hand:
        return False
    store.end(note, by_force=True)
    return True


def _parse(value: bytes) -> ReplayNote | None:
    try:
        return ReplayNote.model_validate_json(value)
    except ValueError:
        return None  # written by hand, and wrongly
