"""A kind of each form: what an entry is, and where its deadline stands."""

from typing import Any

from tests.lua.kinds.world import SCRIPT, SEATS, scripted


def without(kind: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in kind.items() if name not in names}


MEMBER_SCRIPT = """
function decide(entry)
  return 'expire'
end
function plan(entry, now, id)
  return {{'HINCRBY', 'permits:' .. entry.client, 'used', '-1', 'MIN', '0'}}, {slot = entry.slot, id_of = id}
end
"""
BACK = ["HINCRBY seats:{show} free {qty}", "HINCRBY seats:{show} held -{qty} MIN 0"]
SCORED: dict[str, Any] = without(SEATS, "deadline")
JSON: dict[str, Any] = {
    "name": "cart",
    "index": "seats:ttl",
    "entry": "json",
    "key": "carts:{id}",
    "deadline": "expires.at",
    "active": {"state": ["HELD", "PAYING"]},
    "retention": "0s",
    "tenant": "customer",
    "give_back": ["HINCRBY seats:{show} free {order.qty:1}", "HINCRBY seats:{show} held -{order.qty:1} MIN 0"],
    "event": ["show", "order.qty", "paid"],
}
MEMBER: dict[str, Any] = {
    "name": "permit",
    "index": "permits:ttl",
    "entry": "member",
    "member": "{type}|{client}|{slot}",
    "tenant": "client",
    "give_back": [
        "HINCRBY permits:{client} free 1",
        "HINCRBY permits:{client} used -1 MIN 0",
        "SREM slots:{type} {slot}",
    ],
    "event": ["type", "client", "slot"],
}
EACH: dict[str, Any] = SEATS | {
    "each": "items",
    "max_writes": 256,
    "give_back": [
        "HINCRBY stock:{items.sku} free {items.qty}",
        "HINCRBY stock:{items.sku} held -{items.qty} MIN 0",
        "INCRBY carts:given 1",
    ],
    "event": ["items"],
}
ORDER = {
    "each": "order.items",
    "give_back": ["HINCRBY stock:{order.items.sku} free {order.items.qty:1}"],
    "event": ["show"],
}
JOB = {"unless": "EXISTS jobs:{id}", "unless_max": "10m", "unless_recheck": "7m"}
FORMS: dict[str, dict[str, Any]] = {
    "seconds": SEATS | {"unit": "s", "grace": "5s"},
    "score": SCORED | {"grace": "5s"},
    "score in seconds": SCORED | {"unit": "s"} | JOB,
    "score, protected by fields": SCORED | {"unless": {"paid": "yes"}},
    "score, with a script": without(scripted(SCRIPT), "deadline") | JOB,
    "json": JSON | {"grace": "5s"},
    "json, with a script": without(scripted(SCRIPT), "ended") | {"entry": "json", "retention": "0s"},
    "member, with a script": without(scripted(MEMBER_SCRIPT, writes=["permits:*"]), "ended", "key", "deadline")
    | {"entry": "member", "member": MEMBER["member"], "tenant": "client"},
    "json and score": without(JSON, "deadline") | {"unit": "s"} | JOB,
    "json with each": JSON
    | {
        "each": "order.items",
        "give_back": ["HINCRBY stock:{order.items.sku} free {order.items.qty:1}"],
        "event": ["show"],
    },
    "member": MEMBER,
    "member in seconds": MEMBER | {"unit": "s", "grace": "5s"} | JOB,
    "each": EACH,
}
