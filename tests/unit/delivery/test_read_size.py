"""How many new events a read takes for an endpoint that may want few of them."""

from sweeperd.delivery.intake import ReadSize
from tests.unit.delivery.test_batches import entry


def test_reads_grow_until_the_wanted_events_fill_half_of_the_room() -> None:
    """There is room for ten. A read that finds fewer events than it asked for has come to the end of the stream."""
    size, asked = ReadSize(), list[int]()
    for found, wanted in [(10, 0), (20, 0), (40, 5), (40, 5), (40, 20), (10, 0), (0, 0), (19, 0), (10, 0), (20, 0)]:
        asked.append(size.fit(10, 1000))
        size.learn([entry(number) for number in range(found)], wanted)
    assert asked == [10, 20, 40, 40, 40, 10, 20, 20, 10, 20]
    assert (size.fit(10, 35), size.fit(0, 1000)) == (35, 1)
