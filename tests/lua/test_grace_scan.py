"""What a page of the index says of the reservations on it, and what is known of it again, on a frozen clock."""

import hashlib
import json
from typing import Any

import pytest

from sweeperd.store.scripts import Call
from tests.lua.builders import NOW, World, frozen

GRACE = 5000


def scanned(world: World, count: int) -> list[Any]:
    keys = world.keys
    call = Call([keys.reservation_index], [NOW, "-inf", 0, count, keys.reservation(b""), GRACE])
    reply: list[Any] = frozen(NOW, "sweep/grace_scan").run(world.client, call)
    return reply


def fill(world: World, *overdue: int) -> list[bytes]:
    """Reservations that have been overdue for so many ms, oldest first; what the index says of them."""
    entries = []
    for number, late in enumerate(overdue):
        rid = b"%d" % number
        world.reservation(rid, expires_at=NOW - late, grace_ms=None, indexed=False)
        world.index(rid, NOW - late)
        entries += [rid, b"%d" % (NOW - late)]
    return entries


def fingerprint(entries: list[bytes]) -> bytes:
    text = json.dumps([entry.decode() for entry in entries], separators=(",", ":"))
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()


@pytest.fixture
def world(client: Any) -> World:
    return World(client)


@pytest.mark.parametrize(
    ("overdue", "count", "length", "more"),
    [
        # Fewer than a page: nothing follows, so all of them are known to be there.
        ((40, 30, 20, 10), 5, 4, b"0"),
        # A full page: others of its last score may follow, so it ends before that score.
        ((40, 30, 20, 10), 4, 3, b"1"),
        ((40, 30, 20, 20), 3, 2, b"1"),
        ((40, 20, 20, 20), 3, 1, b"1"),
        # All of one score.
        ((20, 20, 20, 20), 3, 3, b"1"),
        ((20,), 1, 1, b"1"),
    ],
)
def test_a_page_in_grace_ends_with_the_last_score_that_it_has_all_of(
    world: World, overdue: tuple[int, ...], count: int, length: int, more: bytes
) -> None:
    entries = fill(world, *overdue)[: 2 * length]
    ends = [NOW - late + GRACE for late in overdue[:length]]
    assert scanned(world, count) == [entries, ends, more, fingerprint(entries)]


@pytest.mark.parametrize(
    ("overdue", "ends"),
    [
        ((6000, 6000), [0, 0]),
        ((6000, 40), [0, NOW - 40 + GRACE]),
        # The last millisecond of a grace, and the first one after it.
        ((5001, 5000), [0, NOW]),
        ((), []),
    ],
)
def test_a_page_that_is_not_all_in_grace_is_whole(world: World, overdue: tuple[int, ...], ends: list[int]) -> None:
    entries = fill(world, *overdue)
    assert scanned(world, 2) == [entries, ends, b"1" if len(overdue) == 2 else b"0", b""]


@pytest.mark.every_redis
@pytest.mark.parametrize(
    ("entries", "ends", "unchanged"),
    [
        (["a", "b"], [NOW, NOW], 2),
        (["a", "b"], [NOW, NOW - 1], 1),
        (["a", "b"], [NOW - 1, NOW], 0),
        (["a", "c"], [NOW, NOW], 1),
        (["c", "b"], [NOW, NOW], 0),
    ],
)
def test_ranges_that_have_not_changed(world: World, entries: list[str], ends: list[int], unchanged: int) -> None:
    world.client.zadd("index", {"before": 1, "at the score": 2, "past": 2, "x1": 3, "x2": 4, "x3": 5})
    # Behind two entries of score 2: a range of two, and a range of one.
    ranges = {"a": [b"x1", b"3", b"x2", b"4"], "b": [b"x3", b"5"], "c": [b"y", b"9"]}
    arguments: list[Any] = ["2", 2]
    for name, count, end in zip(entries, (2, 1), ends, strict=True):
        arguments += [count, fingerprint(ranges[name]), end]
    assert frozen(NOW, "sweep/unchanged_ranges").run(world.client, Call([b"index"], arguments)) == unchanged
