"""What must hold after a chaos soak, in addition to `proof.soak.verdicts`. Each verdict is a function of numbers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from proof.soak.chaos.faults import FaultType
from proof.soak.chaos.inflict import Inflicted
from proof.soak.chaos.missing import Place
from proof.soak.chaos.moment import Moment
from proof.soak.chaos.receivers import Received
from proof.soak.chaos.stage import CONCURRENCY
from proof.soak.verdicts import Verdict, some

#: Of these a process loses what it has in hand, or cannot acknowledge it in time. Redis is shared by all of them.
HANDS_LOST = {FaultType.KILL: 1, FaultType.PAUSE: 1, FaultType.REDIS_KILL: 3}


@dataclass(frozen=True)
class Delivered:
    """What an endpoint has accepted, compared with what it was due."""

    endpoint: str
    #: Events in the streams that it did not accept: how many are where.
    missing: Mapping[Place, int]
    #: Accepted reservations that no stream has an event of.
    strangers: int
    #: Reservations whose event came under two ids.
    two_ids: int
    #: Events that were accepted again, each time counted.
    repeated: int
    #: How many of them the faults explain, at most.
    bound: int

    @property
    def holds(self) -> bool:
        """Whether it got everything that it was due and nothing else."""
        wrong = sum(self.missing.values()) + self.strangers + self.two_ids
        return not wrong and self.repeated <= self.bound

    def __str__(self) -> str:
        where = ", ".join(f"{count} {place}" for place, count in self.missing.items())
        return (
            f"{self.endpoint}: {sum(self.missing.values())} missing{f' ({where})' * bool(where)}, "
            f"{self.strangers + self.two_ids} wrong, {self.repeated} again (at most {self.bound})"
        )


def delivered(
    endpoint: str,
    due: Collection[str],
    got: Mapping[str, Collection[str]],
    missing: Mapping[Place, int],
    repeated: int,
    bound: int,
) -> Delivered:
    """`due`: the reservations whose events are in the streams; `got`: what was accepted, with the ids of the events."""
    strangers, two_ids = len(got.keys() - set(due)), sum(len(ids) > 1 for ids in got.values())
    return Delivered(endpoint, missing, strangers, two_ids, repeated, bound)


def most_repeated(inflicted: Sequence[Inflicted], batch_size: int) -> int:
    """
    How many events may come again at an endpoint. A process has two requests for each of its connections in hand at
    most. It loses them with its life, or when it stands still for so long that another process takes over.
    """
    return batch_size * 2 * CONCURRENCY * sum(HANDS_LOST.get(done.fault.type, 0) for done in inflicted)


def endpoints(found: Sequence[Delivered]) -> Verdict:
    """Every event at every endpoint, and no more repetitions than the faults explain."""
    return Verdict(
        "events",
        "each event was accepted by each endpoint, under one id, and again only where a fault explains it",
        "; ".join(map(str, found)),
        holds=bool(found) and all(one.holds for one in found),
    )


def behaved(batches: Received, fails: Received, hangs: Received, moves: Received) -> Verdict:
    """The receivers were as bad as they should have been."""
    share = fails.refused / max(1, fails.requests)
    return Verdict(
        "bad",
        "one endpoint got batches, one refused a third of its requests, one hung, one moved",
        f"{batches.batches} of {batches.requests} requests with several events; {fails.refused} of {fails.requests} "
        f"refused; {hangs.hung} of {hangs.requests} hung; {moves.requests} requests to the one that moved",
        holds=batches.batches > 0 and 0.2 < share < 0.45 and hangs.hung > 0 and moves.requests > 0,
    )


def moments(taken: Sequence[Moment], shards: Collection[str]) -> Verdict:
    """S4 and the books, at each moment."""
    per_shard = Counter(moment.shard for moment in taken)
    counts = {
        "entries without hash": sum(moment.index.without_hash for moment in taken),
        "hashes without entry": sum(moment.index.without_entry for moment in taken),
        "negative budgets": sum(moment.budgets.negative for moment in taken),
        "budgets that do not add up": sum(moment.budgets.unbalanced for moment in taken),
        "budgets that hold something else": sum(moment.budgets.drifted for moment in taken),
    }
    entries = sum(moment.index.entries for moment in taken)
    wrong = [f"{count} {name}" for name, count in counts.items() if count]
    return Verdict(
        "while",
        "at each moment: index and hashes one to one, no negative number, each budget adds up to what is held",
        f"{len(taken)} moments, {entries} entries: {', '.join(wrong) or 'nothing wrong'}",
        holds=all(per_shard[shard] for shard in shards) and entries > 0 and not wrong,
    )


def all_faults(inflicted: Sequence[Inflicted], planned: Mapping[FaultType, int]) -> Verdict:
    """Every fault was carried out, and had its effect."""
    effects = Counter(done.fault.type for done in inflicted if done.effect)
    troubles = [f"{done.fault.type} at {done.fault.at:.0f} s: {done.trouble}" for done in inflicted if done.trouble]
    return Verdict(
        "faults",
        "each fault was carried out and had its effect",
        some(troubles) or ", ".join(f"{type_} {effects[type_]}" for type_ in planned),
        holds=bool(planned) and not troubles and dict(effects) == dict(planned),
    )


def alive(exits: Mapping[str, int | None]) -> Verdict:
    """No replica ended by itself, and each ends as it should at the end. `exits`: the exit code of each at SIGTERM."""
    return Verdict(
        "alive",
        "no replica ended by itself, and each stopped with exit code 0",
        ", ".join(f"{name}: {code}" for name, code in exits.items()),
        holds=bool(exits) and all(code == 0 for code in exits.values()),
    )
