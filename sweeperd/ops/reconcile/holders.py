"""Finds the reservations that hold a part of a budget."""

from collections.abc import Iterator, Sequence
from typing import Annotated, cast

import redis
from pydantic import BeforeValidator, Field

from sweeperd.config import SweepSettings
from sweeperd.document import Document, Text
from sweeperd.ops.reconcile.subjects import UNREADABLE, Reservations
from sweeperd.store.errors import is_wrong_type
from sweeperd.store.keys import Keys
from sweeperd.store.shard import Shard


class HolderDocument(Document):
    """A reservation that holds a part of the budget."""

    id: Text
    amount: int
    tenant: Text
    state: Text
    created_at: Text = Field(description="As it is stored, ms.")
    expires_at: Text = Field(description="As it is stored, ms.")
    quarantined: Annotated[bool, BeforeValidator(bool)] = Field(validation_alias="quarantined_at")


_HOLDER_FIELDS = ["tenant", "state", "created_at", "expires_at", "quarantined_at"]


def read_budget(shard: Shard, budget: bytes) -> dict[bytes, bytes] | None:
    """The fields of a budget; None if there is no such hash."""
    try:
        return cast(dict[bytes, bytes], shard.client.hgetall(budget)) or None
    except redis.ResponseError as error:
        if not is_wrong_type(error):
            raise
        return None


def find_holders(shard: Shard, settings: SweepSettings, budget: bytes) -> Iterator[HolderDocument]:
    """The reservations that hold a part of the budget when they are read, quarantined ones included, each once."""
    known, now = set[bytes](), shard.read_clock()
    with Reservations(shard, settings) as subject:
        for _, ids in subject.hashes():
            for observation in subject.look(ids, now):
                amount = _amount(shard.keys, budget, observation.holding)
                if amount is not None and observation.entry not in known:
                    known.add(observation.entry)
                    key = subject.kind.entry_key(observation.entry)
                    row = (value or b"" for value in cast(list[bytes | None], shard.client.hmget(key, _HOLDER_FIELDS)))
                    fields = dict(zip(_HOLDER_FIELDS, row, strict=True))
                    yield HolderDocument.model_validate({"id": observation.entry, "amount": amount, **fields})


def _amount(keys: Keys, budget: bytes, holding: Sequence[bytes]) -> int | None:
    """The amount of this budget in a holding that reconcile_look.lua returned; None if it is none now."""
    if len(holding) < 4 or holding[0] in UNREADABLE or holding[1] not in (b"", b"?"):
        return None
    _, _, amount, unit, *scopes = holding
    mentions = sum(keys.budget(scope, unit) == budget for scope in scopes)
    return int(amount) * mentions if mentions else None
