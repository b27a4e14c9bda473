"""Reads the hashes, the index and the script's answers of one configured kind, page by page, for a walk over it."""

from collections.abc import Callable, Iterator, Sequence

import redis

from sweeperd.config import Settings
from sweeperd.config.kinds import KindSettings
from sweeperd.errors import KindRefused
from sweeperd.ops.reconcile.keyspace import PAGE, Keyspace, Throttle
from sweeperd.ops.reconcile.kind_report import KindFault, KindFinding, KindStage
from sweeperd.ops.show import Explanation, explain
from sweeperd.store.scripts import Call, Script
from sweeperd.store.shard import Shard
from sweeperd.sweep.configured import configured
from sweeperd.sweep.kind import Outcome

#: (stage, keys done so far, keys expected in all)
KindProgress = Callable[[KindStage, int, int], None]
_ENTRY = Script("ops/reconcile_kind")


class KindReader:
    """One kind on one shard, at the pace of `throttle`. Raises RedisUnavailable, redis.RedisError, Interrupted."""

    def __init__(
        self, shard: Shard, settings: Settings, kind: KindSettings, throttle: Throttle, progress: KindProgress
    ) -> None:
        self.shard = shard
        self.kind = kind
        self.throttle = throttle
        self.swept = configured(kind, settings, shard.keys)
        self.keyspace = Keyspace(shard, throttle, self.swept.index, shard.keys.kind_entry(kind.entry, b""))
        self._sweep = settings.sweep
        self._progress = progress
        stem, end = (part.encode() for part in kind.entry)
        self._stem, self._end = shard.keys.prefix + stem, end

    def hashes(self, stage: KindStage, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """The ids of all hashes that have the name of an entry: the cursor of the next page (0: none), and a page."""
        size = self.keyspace.size()
        for number, (following, page) in enumerate(self.keyspace.keys(self._stem, cursor), 1):
            self._progress(stage, number * PAGE, max(size, number * PAGE))
            yield following, [key[len(self._stem) : len(key) - len(self._end)] for key in page if self.is_entry(key)]

    def index(self, cursor: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """The ids in the index, in the same way."""
        size = int(self.shard.client.zcard(self.swept.index))
        for number, (following, page) in enumerate(self.keyspace.index(cursor), 1):
            self._progress(KindStage.INDEX, number * PAGE, max(size, number * PAGE))
            yield following, page

    def is_entry(self, key: bytes) -> bool:
        """Whether this is the name of an entry's hash."""
        longer = len(key) > len(self._stem) + len(self._end)
        named = longer and key.startswith(self._stem) and key.endswith(self._end)
        return named and key != self.swept.index

    def explained(self, ids: Sequence[bytes]) -> list[Explanation]:
        """
        What the kind's own script says of these ids; its writes are not sent. A script that fails ends the walk: no
        entry would seem active. Raises KindRefused where it would fail for each entry, or was killed.
        """
        explanations = explain(self.shard, self.swept, ids, self._sweep.pipeline_depth)
        for each in explanations:
            if each.decision.outcome is Outcome.ERROR:
                error = redis.ResponseError(each.decision.detail)
                if self.swept.is_broken_by(error):
                    raise KindRefused(f"{self.kind.name}: not walked: {error}") from error
                raise error
        return explanations


def checked(shard: Shard, kind: KindSettings, ids: Sequence[bytes], *, mend: bool = False) -> list[KindFinding]:
    """What the index has wrong about these ids; `mend`: put right in the same step. Raises redis.RedisError."""
    keys = shard.keys
    index, quarantine = keys.kind_index(kind.index), keys.kind_quarantine(kind.name)
    # A script may let an entry wait: its score is later than its deadline then.
    late = 0 if kind.script is None else kind.max_wait_ms
    calls = [
        Call([index, quarantine, keys.kind_entry(kind.entry, entry)], [entry, kind.deadline, int(mend), late])
        for entry in ids
    ]
    replies = _ENTRY.run_many(shard.client, calls)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return [
        KindFinding(KindFault(reply[0].decode()), entry, reply[2].decode(), reply[1].decode())
        for entry, reply in zip(ids, replies, strict=True)
        if reply
    ]
