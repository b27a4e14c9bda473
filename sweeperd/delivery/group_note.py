"""What is known of a consumer group that began in the past."""

import pydantic

from sweeperd.store.shard import Shard


class GroupNote(pydantic.BaseModel):
    """One field of `sweeperd:groups`. Fields that a later version adds are ignored."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    #: When the group was made, ms on Redis's clock: the age of older events counts from then.
    made_at: int = 0


def made_at(shard: Shard, group: str) -> int:
    """When the group was made, ms; 0: it began at that moment, so it has no note. Raises redis.RedisError."""
    note = shard.client.hget(shard.keys.groups, group)
    if not isinstance(note, bytes):
        return 0
    try:
        return GroupNote.model_validate_json(note).made_at
    except ValueError:
        return 0  # written by hand, and wrongly
