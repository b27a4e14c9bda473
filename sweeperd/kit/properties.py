"""The properties that every kind must have: each is a function that returns the first input that breaks it."""

from sweeperd.kit import drains, entries, surroundings
from sweeperd.kit.failure import Property

#: All properties, in the order of the report.
PROPERTIES: tuple[tuple[str, Property], ...] = (
    ("expires when it is due", entries.expires),
    ("bounded time and commands", surroundings.bounded),
    ("never early", entries.never_early),
    ("a later deadline moves the index", entries.put_off),
    ("what waits comes to an end", entries.waits),
    ("a second run changes nothing", entries.again),
    ("two rivals make one event", drains.rivals),
    ("each end has its event", drains.at_once),
    ("a killed sweeper loses nothing", drains.killed),
    ("an orphan leaves the index", entries.orphan),
    ("another type is set aside", entries.wrong_type),
    ("what has ended is left alone", entries.ended),
    ("another state has ended", entries.alive),
    ("amounts that are none are refused", entries.amounts),
    ("hostile fields move nothing in part", entries.fields),
    ("a deadline in seconds is refused", entries.seconds),
    ("an id that is used again", entries.reused),
    ("hostile counters move nothing in part", surroundings.counters),
    ("a key keeps its TTL", surroundings.ttls),
    ("missing rights move nothing", surroundings.rights),
    ("a full redis", surroundings.full),
    ("a full stream", surroundings.full_stream),
    ("the prefix stands before each key", surroundings.prefixed),
)
