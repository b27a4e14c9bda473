"""Chooses the Redis servers that the tests of a mutant run on."""

from collections.abc import Iterable
from typing import Any, Literal

import pytest

Servers = Literal["newest", "older"]


def on_servers(servers: Servers, items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests that run on the newest Redis or need none, or those that run on an older one."""
    from tests.support.servers import binaries  # noqa: PLC0415  it imports the product, which may be the mutant

    found = binaries()
    wanted = (None, *found[:1]) if servers == "newest" else found[1:]
    return [item for item in items if _binary(item) in wanted]


def _binary(item: pytest.Item) -> Any:
    return item.callspec.params.get("redis_binary") if hasattr(item, "callspec") else None
