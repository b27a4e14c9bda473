"""Settings of kinds that several tests start from."""

from typing import Any

import redis

#: Seats that are held, as TOML: the lines after it say what is given back and what the event carries.
SEAT_HOLD = """
[[kinds]]
name = "seat-hold"
index = "seats:ttl"
key = "seats:hold:{id}"
deadline = "expires_at"
active = { state = "HELD" }
ended = { state = "EXPIRED" }
"""
#: The reservations of the built-in kind as a configured one; what it gives back and writes is to be added.
BUDGET_HOLD: dict[str, Any] = {
    "name": "budget-hold",
    "index": "reservation:ttl",
    "key": "reservation:res_{id}",
    "deadline": "expires_at",
    "ended": {"state": "EXPIRED"},
    "tenant": "tenant",
    "retention": "30d",
}


def hold_seats(
    client: redis.Redis, entry: str, qty: object, deadline: int, show: str = "hamlet", **fields: Any
) -> None:
    """Write a hold and its index entry."""
    hold: dict[Any, Any] = {"state": "HELD", "show": show, "qty": qty, "expires_at": deadline, **fields}
    client.hset(f"seats:hold:{entry}", mapping=hold)
    client.zadd("seats:ttl", {entry: deadline})
