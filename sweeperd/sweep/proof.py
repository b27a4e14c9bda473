"""
Proves configured kinds: a kind is proven once one of its entries was seen alive under its settings.

With one wrong word in `key`, `active` or `ended`, no entry looks alive, and each due one would leave the index as
`not_found` or `skipped`. So the script of an unproven kind holds such entries: they stay in the index.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import redis

from sweeperd.store.errors import describe, is_server_trouble
from sweeperd.store.scripts import batches
from sweeperd.store.shard import Shard
from sweeperd.sweep.explanation import explain
from sweeperd.sweep.kind import Decision, Kind, Outcome
from sweeperd.sweep.sample import sample
from sweeperd.text import decode

log = logging.getLogger(__name__)

#: Sampled entries per round trip.
BATCH = 10
#: How many causes of held entries are counted in one tick.
CAUSES = 100


def is_proven(shard: Shard, kind: Kind) -> bool:
    """Whether any process has proven the kind; False if the user may not read that. Raises redis.RedisError."""
    if not kind.proof:
        return True
    try:
        return shard.client.hget(shard.keys.proofs, kind.proof.decode()) is not None
    except redis.ResponseError as error:
        if is_server_trouble(error):
            raise
        return False


def sampled(shard: Shard, kind: Kind) -> Iterator[list[Decision]]:
    """What the kind's script would decide about a sample of the index. Raises redis.RedisError."""
    for part in batches(sample(shard, kind), BATCH):
        yield [each.decision for each in explain(shard, kind, part, BATCH)]


def may_be_trusted(shard: Shard, kind: Kind) -> bool:
    """Whether the kind is proven, or an entry of a sample is alive. Raises redis.RedisError."""
    return is_proven(shard, kind) or any(
        decision.outcome.shows_life for decisions in sampled(shard, kind) for decision in decisions
    )


def prove(shard: Shard, kind: Kind) -> None:
    shard.client.hset(shard.keys.proofs, kind.proof.decode(), str(shard.clock.now_ms()))


class Proof:
    """Whether one kind is proven on one shard, as one process knows it. Not thread-safe."""

    def __init__(self, shard: Shard, kind: Kind) -> None:
        self._shard = shard
        self._kind = kind
        #: Whether an entry was seen alive, and whether Redis knows.
        self.proven = self._noted = not kind.proof
        self._refusal_logged = False

    def begin(self, *, whole: bool) -> Decision | None:
        """Begin a tick; a `whole` one takes a sample. Returns a decision that shows that the script is broken."""
        if self.proven:
            self._note()
        elif is_proven(self._shard, self._kind):
            self.proven = self._noted = True
        elif whole:
            return self._sample()
        return None

    def _sample(self) -> Decision | None:
        for decisions in sampled(self._shard, self._kind):
            for each in decisions:
                if each.outcome is Outcome.ERROR and self._kind.broken:
                    return each._replace(detail=self._kind.broken)
            if self.decided(decisions):
                break
        return None

    def decided(self, decisions: Sequence[Decision]) -> bool:
        """Returns whether the kind is proven, perhaps by one of these decisions. Raises redis.RedisError."""
        if not self.proven and any(decision.outcome.shows_life for decision in decisions):
            self.proven = True
            self._note()
        return self.proven

    def _note(self) -> None:
        """If Redis refuses, only this process knows, and tries again at each tick."""
        if self._noted:
            return
        try:
            prove(self._shard, self._kind)
            self._noted = True
        except redis.ResponseError as error:
            if is_server_trouble(error):
                raise
            if not self._refusal_logged:
                about = {"shard": self._shard.name, **self._kind.log_fields}
                log.warning("the proof of a kind cannot be noted", extra=about | {"error": describe(error)})
            self._refusal_logged = True


class HeldCauses:
    """Why the entries of one tick were held."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._causes: Counter[str] = Counter()
        #: Whether an entry was decided otherwise, so that it has a hash.
        self._others = False

    def add(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if decision.outcome is not Outcome.HELD:
                self._others = True
            elif decision.why in self._causes or len(self._causes) < CAUSES:
                self._causes[decision.why] += 1

    @property
    def likely(self) -> str:
        """The most frequent cause; empty if nothing was held."""
        if not self._causes:
            return ""
        ((why, _),) = self._causes.most_common(1)
        if why:
            return why
        index, key = decode(self._kind.index), decode(self._kind.entry_key(b"{id}"))
        some = self._others or len(self._causes) > 1
        noun = "string" if self._kind.form == "json" else "hash"
        return f"entries of {index} have no {noun} {key}" if some else f"no entry of {index} has a {noun} {key}"
