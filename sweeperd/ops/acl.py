"""The rules of the Redis user of sweeperd, made from the settings."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from sweeperd.config import Settings, ShardSettings
from sweeperd.ops.grants import ANY, Duty, channels, connection_grants, grants
from sweeperd.redis_url import parse
from sweeperd.store.keys import Keys

#: What Redis takes in a pattern for more than itself.
_SPECIAL = re.compile(r"[*?\[\]\\]")
#: What cannot stand in a rule: Redis splits an ACL file at spaces.
_UNWRITABLE = re.compile(r"[\x00-\x20\x7f]")
Role = Literal["all", "sweep", "deliver"]


@dataclass(frozen=True)
class AclUser:
    """The rights that sweeperd needs on one Redis. They replace all rules of the user but its passwords."""

    #: Where the Redis is, without credentials, and the shards that are on it.
    address: str
    shards: list[str]
    rules: list[str]


def acl_users(
    settings: Settings, shards: Sequence[ShardSettings], role: Role, *, commands: bool, ledger: bool = False
) -> list[AclUser]:
    """
    One for each Redis of these shards, for a daemon in this role; with `commands` also for the commands of operators.
    With `ledger` for `sweeperd.ledger` instead.
    """
    wanted = {Duty.LEDGER} if ledger else _duties(settings, role, commands=commands)
    found = dict[str, list[ShardSettings]]()
    for shard in shards:
        place = urlsplit(parse(shard.url.get_secret_value()).shown)
        # Users belong to the whole server and not to one of its databases.
        found.setdefault(f"{place.scheme}://{place.netloc or place.path}", []).append(shard)
    return [
        AclUser(address, [shard.name for shard in there], _rules(settings, there, wanted))
        for address, there in found.items()
    ]


def _duties(settings: Settings, role: Role, *, commands: bool) -> set[Duty]:
    found = {Duty.STATUS}
    if role != "deliver":
        found |= {Duty.SWEEP, *([Duty.WALK] if settings.reconcile.interval else [])}
    if role != "sweep":
        found.add(Duty.DELIVER)
    return found | ({Duty.WALK, Duty.OPERATE} if commands else set())


def _rules(settings: Settings, shards: Iterable[ShardSettings], wanted: Collection[Duty]) -> list[str]:
    keys, commands = dict[str, None](), set[str]()
    for shard in shards:
        connection = list(connection_grants(shard.url.get_secret_value()))
        for grant in (*connection, *grants(settings, Keys(shard.prefix))):
            if grant in connection or grant.duty in wanted:
                commands.update(command.lower() for command in grant.commands)
                if grant.key:
                    keys[f"~{_pattern(grant.key)}"] = None
    audible = [f"&{_glob(channel)}" for channel in channels(settings) if "publish" in commands]
    return ["on", "resetkeys", "resetchannels", "-@all", *keys, *audible, *(f"+{name}" for name in sorted(commands))]


def _pattern(key: bytes) -> str:
    return "*".join(_literal(part) for part in key.decode().split(ANY.decode()))


def _glob(pattern: str) -> str:
    return "*".join(map(_literal, pattern.split("*")))


def _literal(text: str) -> str:
    """As a pattern of Redis that matches this text; what no rule can hold becomes `?`, one character."""
    return _UNWRITABLE.sub("?", _SPECIAL.sub(r"\\\g<0>", text))
