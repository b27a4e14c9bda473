"""
Defines the base models of JSON: documents for `--json`, and notes in Redis.

Each document that a command prints is a model next to the code that fills it, and `python -m tests.docs.generate`
writes docs/schemas from these models. A field without a default is always present. A field with a default is omitted
unless it was set. Limits of numbers and texts are for the schema only: a document is printed even if it exceeds them.
"""

from typing import Annotated, Any, Self

import pydantic
from pydantic import Field, PlainSerializer, WithJsonSchema

from sweeperd.text import decode, timestamp

Count = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
Seconds = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0})]
#: Milliseconds since the epoch in Python, RFC 3339 in JSON; null beyond the year 9999.
Moment = Annotated[
    float,
    PlainSerializer(timestamp),
    WithJsonSchema({"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}),
]
#: A command-line argument. Not validated, because invalid UTF-8 becomes lone surrogates.
Argument = Annotated[Any, WithJsonSchema({"type": "string"})]
#: Text or bytes from Redis. Invalid UTF-8 is escaped.
Text = Annotated[str, pydantic.BeforeValidator(lambda value: decode(value) if isinstance(value, bytes) else value)]
#: The body of a webhook; None if the event is lost. The generator turns the comment into a reference.
Body = Annotated[
    dict[str, Any] | None, WithJsonSchema({"anyOf": [{"$comment": "webhook.schema.json"}, {"type": "null"}]})
]


class Document(pydantic.BaseModel):
    """A JSON document or a part of one. It can be validated from the attributes of any object."""

    model_config = pydantic.ConfigDict(
        frozen=True, from_attributes=True, populate_by_name=True, defer_build=True, ser_json_inf_nan="constants"
    )

    @classmethod
    def made_of(cls, value: object, **more: Any) -> Self:
        """The document with the fields `more`, and all others from the attributes of `value`."""
        return cls.model_validate(_Joined(value, more))

    def as_json(self) -> dict[str, Any]:
        """The document as input of `json.dumps`."""
        return self.model_dump(mode="json", exclude_unset=True)


class _Joined:
    """Attributes that shadow those of another value."""

    def __init__(self, value: object, attributes: dict[str, Any]) -> None:
        self.__dict__ |= attributes
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value, name)


def _require_address(schema: dict[str, Any]) -> None:
    schema["required"].insert(0, "address")
    if down := schema["properties"].pop("down", None):
        schema["properties"]["down"] = down
        schema["required"].append("down")


class CommandDocument(Document):
    """The output of a command on shards. `Output.json` sets the address."""

    model_config = pydantic.ConfigDict(json_schema_extra=_require_address)

    address: str = Field(
        default="",
        description="The address of the shard, without credentials; of several shards, joined by a comma and a space.",
    )


class DownShard(Document):
    """A shard that could not be used."""

    shard: str
    address: str
    error: str


class ShardsDocument(CommandDocument):
    """The output of a command that goes on if a shard is down. `Run.report` adds `down` at the end."""

    down: list[DownShard] = Field(default=[], description="The shards that could not be used.")


#: Of a list that has a limit.
Truncated = Annotated[bool, Field(description="Whether there are more than are listed.")]


class Note(pydantic.BaseModel):
    """A note for all processes, stored as JSON in a field of a hash. Unknown fields are ignored."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore", defer_build=True)

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """Parse a note; None if it is invalid, for example after a manual edit."""
        try:
            return cls.model_validate_json(text)
        except ValueError:
            return None
