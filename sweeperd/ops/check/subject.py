"""One shard, and what its server reports about itself."""

from collections.abc import Callable, Mapping
from typing import Any

import redis

from sweeperd.config import Settings
from sweeperd.store.errors import REFUSED
from sweeperd.store.shard import Shard


class Subject:
    """One shard and what its server says of itself, asked for once."""

    def __init__(self, shard: Shard, settings: Settings) -> None:
        self.shard = shard
        self.settings = settings
        self._info: Mapping[str, Any] | None = None
        self._asked = False

    @property
    def info(self) -> Mapping[str, Any] | None:
        """INFO; None where the user may not ask for it."""
        if not self._asked:
            self._info, self._asked = self._allowed(self.shard.client.info), True
        return self._info

    def config(self, name: str) -> str | None:
        """A setting of the server; None where the user may not ask, or where the server has none of that name."""
        values = self._allowed(lambda: self.shard.client.config_get(name))
        value = (values or {}).get(name)
        return value.decode() if isinstance(value, bytes) else value

    @staticmethod
    def _allowed(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except redis.ResponseError:
            return None  # refused, or taken away: managed services rename CONFIG
        except REFUSED:
            return None
