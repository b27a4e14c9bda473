"""
The bases of the JSON documents, and of the notes in Redis. Each document that a command prints with `--json` is a model
beside the code that makes it, and `python -m tests.docs.generate` writes docs/schemas from these models.

A field without a default stands in each document; a field with a default is left out if it was not given. The limits of
numbers and texts are for the schema only: a document with an odd value is still printed.
"""

from typing import Annotated, Any, Self

import pydantic
from pydantic import Field, PlainSerializer, WithJsonSchema

from sweeperd.text import decode, timestamp

Count = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
Seconds = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0})]
#: In Python ms since the epoch, in JSON RFC 3339; null for a moment beyond the calendar.
Moment = Annotated[
    float,
    PlainSerializer(timestamp),
    WithJsonSchema({"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}),
]
#: An argument of the command as it was given. Bytes that are not UTF-8 stay lone surrogates, so it is not validated.
Argument = Annotated[Any, WithJsonSchema({"type": "string"})]
#: Bytes of Redis; what is not UTF-8 is escaped.
Text = Annotated[str, pydantic.BeforeValidator(lambda value: decode(value) if isinstance(value, bytes) else value)]
#: The body of a webhook; None: the event is lost. The generator turns the comment into a reference.
Body = Annotated[
    dict[str, Any] | None, WithJsonSchema({"anyOf": [{"$comment": "webhook.schema.json"}, {"type": "null"}]})
]


class Document(pydantic.BaseModel):
    """A JSON document, or a part of one. A model reads a value of another class by its attributes."""

    model_config = pydantic.ConfigDict(
        frozen=True, from_attributes=True, populate_by_name=True, defer_build=True, ser_json_inf_nan="constants"
    )

    @classmethod
    def made_of(cls, value: object, **more: Any) -> Self:
        """The document with the fields `more`; each other field is read from the attributes of `value`."""
        return cls.model_validate(_Joined(value, more))

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return self.model_dump(mode="json", exclude_unset=True)


class _Joined:
    """Attributes, and behind them the attributes of another value."""

    def __init__(self, value: object, attributes: dict[str, Any]) -> None:
        self.__dict__ |= attributes
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value, name)


def _require_address(schema: dict[str, Any]) -> None:
    schema["required"].insert(0, "address")


class CommandDocument(Document):
    """What a command prints that works on shards: `Output.json` fills the address in."""

    model_config = pydantic.ConfigDict(json_schema_extra=_require_address)

    address: str = Field(
        default="",
        description="The address of the shard, without credentials; of several shards, joined by a comma and a space.",
    )


class DownShard(Document):
    """A shard that could not be worked with."""

    shard: str
    address: str
    error: str


Down = Annotated[list[DownShard], Field(description="The shards that could not be worked with.")]


class Note(pydantic.BaseModel):
    """What a process or an operator leaves for all processes, in a field of a hash. Unknown fields are ignored."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """None: the text is no such note, because it was written by hand, and wrongly."""
        try:
            return cls.model_validate_json(text)
        except ValueError:
            return None
