"""Reads the stream ahead of the lanes with a filter, so that what they do not want is read once for all of them."""

from collections import Counter
from collections.abc import Sequence

from sweeperd.delivery.in_flight import Room
from sweeperd.outbox import Outbox, OutboxEntry, Subscription
from sweeperd.outbox.event import ONLY_FOR
from sweeperd.store.operations import Operation

#: How many events a page has at most, and how many pages are kept: lanes that are behind differ in how far.
PAGE_EVENTS, PAGES = 500, 4
#: Up to this many unwanted events between wanted ones are read with them.
FEW = 8


class Page:
    """Some events in a row. `after`: the id before the first; `more`: whether events may follow."""

    def __init__(self, after: bytes, entries: Sequence[OutboxEntry], *, more: bool) -> None:
        self.more = more
        self.entries = entries
        self._places = {after: 0} | {entry.id: place for place, entry in enumerate(entries, 1)}
        #: The places of the events of each tenant, and of those for one endpoint only.
        self._of_tenant: dict[bytes, list[int]] = {}
        self._special: list[int] = []
        for place, entry in enumerate(entries):
            fields = entry.fields
            self._of_tenant.setdefault(fields.get(b"tenant", b""), []).append(place)
            if ONLY_FOR in fields:
                self._special.append(place)

    def place(self, position: bytes) -> int | None:
        """The place of the first event after the position; None if the page does not tell it."""
        place = self._places.get(position)
        return None if place == len(self.entries) and self.more else place

    def look(self, place: int, subscription: Subscription, most: int) -> tuple[int, int]:
        """
        How many events from this place on are unwanted, and how many after them are worth reading: up to `most`, or
        until the next of many unwanted ones.
        """
        places: Sequence[int] = range(place, len(self.entries))
        if subscription.tenants is not None:
            lists = [self._special, *(self._of_tenant.get(tenant, []) for tenant in subscription.tenants)]
            places = sorted({each for some in lists for each in some if each >= place})
        first = last = -1
        for each in places:
            if not subscription.wants(self.entries[each]):
                continue
            if first < 0:
                first = each
            elif each - last > FEW or each - first >= most:
                break
            last = each
        if first < 0:
            return len(self.entries) - place, 0
        return first - place, last + 1 - first


class Ahead:
    """
    Pages of the stream that were read without a group. They tell for a lane with a filter how far the next wanted event
    is, and the lane's group passes the others without reading them. Of 1,000 endpoints with a tenant each, a group that
    reads everything costs a thousand times what it delivers.
    """

    def __init__(self, outbox: Outbox, room: Room) -> None:
        self._outbox = outbox
        self._room = room
        self._pages: list[Page] = []

    def forget(self) -> None:
        """The server may be another one."""
        self._pages.clear()

    def news(self) -> None:
        """There may be more events."""
        for page in self._pages:
            page.more = True

    def page(self, position: bytes) -> Page | None:
        """A page that tells what comes after this position."""
        return next((page for page in self._pages if page.place(position) is not None), None)

    def read(self, positions: Sequence[bytes], most: int) -> Operation[None]:
        """If several of these positions, of lanes that are about to read, are the same one, read what follows it."""
        unknown = Counter(position for position in positions if self.page(position) is None)
        for position, lanes in unknown.most_common(1):
            if lanes > 1:
                asked = min(PAGE_EVENTS, most)
                entries = yield from self._outbox.peek.part(position, asked)
                self._room.learn(entries)
                self._pages = [*self._pages[1 - PAGES :], Page(position, entries, more=len(entries) >= asked)]
