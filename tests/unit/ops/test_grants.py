"""The table of grants knows every key, so that no feature is forgotten in the rights of the user."""

import inspect

from sweeperd.config import Settings
from sweeperd.ops.acl import ANY, Duty, acl_users, grants
from sweeperd.store import Keys
from sweeperd.store.keys import SUBSCRIPTION, CyclesKeys

ENDPOINT = {"name": "a", "url": "http://a", "events": ["reservation.expiry_rate_spike"], "max_rate": 10, "order": "key"}
KIND = {
    "name": "seat",
    "index": "seats:ttl",
    "key": "seats:hold:{id}",
    "deadline": "until",
    "active": {"state": "HELD"},
    "ended": {"state": "OVER"},
    "unless": {"paid": "yes"},
}
#: A form with every key that a kind may have.
FORM = {"name": "seat", "index": "seats:ttl", "key": "seats:hold:{id}", "entry": "json", "retention": "0s"}
ALL = Settings.model_validate({"cycles": {"enabled": True}, "kinds": [KIND], "webhooks": {"endpoints": [ENDPOINT]}})
#: Names that are part of others.
PARTS = {"prefix", "budget_stem", "idempotency_stem"}
ARGUMENTS = {"job": "sweep", "kind": "seat", "name": "seats:ttl", "template": ("seats:hold:", ""), "endpoint": "a"}


def named(keys: object) -> dict[str, bytes]:
    """Each key, with ANY for what an entry, a tenant or an event puts into its name."""
    found = {name: key for name, key in vars(keys).items() if isinstance(key, bytes) and not name.startswith("_")}
    for name, member in inspect.getmembers(type(keys), inspect.isfunction):
        if not name.startswith("_"):
            parameters = list(inspect.signature(member).parameters.values())[1:]
            arguments = [
                ARGUMENTS.get(each.name, ANY if each.annotation in (bytes, "bytes") else ANY.decode())
                for each in parameters
            ]
            if name == "subscription":
                arguments = [SUBSCRIPTION + ANY]
            found[name] = getattr(keys, name)(*arguments)
    return found


def test_every_key_is_granted() -> None:
    form = Settings.model_validate({"kinds": [FORM]})
    patterns = [grant.key for settings in (ALL, form) for grant in grants(settings, Keys("p:"))]

    def is_granted(key: bytes) -> bool:
        return any(
            key == pattern or (pattern.endswith(ANY) and key.startswith(pattern.removesuffix(ANY)))
            for pattern in patterns
        )

    wanted = {name: key for name, key in named(Keys("p:")).items() if name not in PARTS}
    wanted |= {f"cycles {name}": key for name, key in named(CyclesKeys(b"p:")).items()}
    assert {name for name, key in wanted.items() if not is_granted(key)} == set()


def test_a_role_gets_no_key_of_the_other() -> None:
    def keys(role: str) -> set[str]:
        (user,) = acl_users(ALL, ALL.all_shards, role, commands=False)  # type: ignore[arg-type]
        return {rule for rule in user.rules if rule.startswith("~")}

    assert {"~sweeperd:rates", "~cycles:maintenance:lease:reservation_expiry"} <= keys("sweep") - keys("deliver")
    assert {"~dispatch:pending", "~webhooks:*", "~sweeperd:lease:order:*"} <= keys("deliver") - keys("sweep")
    assert keys("sweep") | keys("deliver") == keys("all")


def test_each_duty_is_used() -> None:
    assert {grant.duty for grant in grants(ALL, Keys())} == set(Duty)
