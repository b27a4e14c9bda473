"""One attempt: what the log keeps of one request to an endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass

from sweeperd.store.streams import StreamId
from sweeperd.text import decode, whole

#: How much of the response's body is kept, characters.
ANSWER = 256


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request with one event, or with a batch of them. No secret is in it."""

    #: When it ended, ms on Redis's clock.
    at_ms: int
    #: The id of the event, and of what has expired; of a batch: those of its first event.
    event_id: str
    reservation: bytes
    #: The first and the last event in the stream, and how many the request had.
    first: bytes
    last: bytes
    events: int
    #: Which hand-over of the first event it was, and which attempt within that, both from 1.
    hand_over: int
    attempt: int
    #: `delivered`, `rejected` or `failed`.
    result: str
    #: The status, or why there was no response.
    reason: str
    milliseconds: int
    #: The beginning of the response's body; what is secret is hidden.
    answer: str
    #: The process that sent it.
    replica: str

    def fields(self) -> dict[str, str | bytes | int]:
        """As the entry of a stream."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def parse(cls, fields: Mapping[bytes, bytes]) -> "Attempt":
        """The opposite of `fields`. A field that is missing, or is no number where one is needed, counts as empty."""
        text = {name: decode(fields.get(name.encode(), b"")) for name in cls.__slots__}
        number = {name: whole(fields.get(name.encode(), b"")) or 0 for name in cls.__slots__}
        return cls(
            number["at_ms"],
            text["event_id"],
            fields.get(b"reservation", b""),
            fields.get(b"first", b""),
            fields.get(b"last", b""),
            number["events"],
            number["hand_over"],
            number["attempt"],
            text["result"],
            text["reason"],
            number["milliseconds"],
            text["answer"],
            text["replica"],
        )

    def includes(self, entry: bytes) -> bool:
        """Whether this entry of the stream is in the range of the request."""
        try:
            return StreamId.parse(self.first) <= StreamId.parse(entry) <= StreamId.parse(self.last)
        except ValueError:
            return False
