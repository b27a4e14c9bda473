"""Gives new connections the user and the password of the settings, which commands may print."""

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis

from sweeperd import redis_url
from sweeperd.config import RedisSettings
from sweeperd.config.commands import Command, CommandFailed, command

_of_url = functools.lru_cache(maxsize=16)(redis_url.parse)
#: None: unknown. Empty: nothing to authenticate with.
Login = tuple[str, ...]


class Credentials(redis.CredentialProvider):
    """The credentials of one shard. Thread-safe."""

    def __init__(self, settings: RedisSettings) -> None:
        texts = {name: getattr(settings, name).get_secret_value() for name in ("url", "user", "password")}
        self._texts = texts
        self._commands = {name: found for name, text in texts.items() if (found := command(text)) is not None}

    @property
    def needed(self) -> bool:
        """Whether the URL in the settings doesn't say all."""
        return bool(self._texts["user"] or self._texts["password"] or self._commands)

    @property
    def runs(self) -> dict[str, int]:
        """The run of each command that printed what is known now."""
        return {name: found.runs for name, found in self._commands.items()}

    def get_credentials(self) -> Any:
        """The arguments of AUTH. Runs a command if need be. Raises redis.ConnectionError."""
        try:
            return self._login(Command.value)
        except CommandFailed as error:
            raise redis.ConnectionError(f"there are no credentials: {error}") from None

    async def get_credentials_async(self) -> Any:
        return await asyncio.to_thread(self.get_credentials)

    def differ(self, login: Login) -> bool:
        """Whether a connection that has logged in like this should do it anew. Never waits."""
        with suppress(CommandFailed):
            return self._login(Command.known) != login
        return False

    def accept(self) -> None:
        for found in self._commands.values():
            found.accept()

    def refuse(self, runs: dict[str, int]) -> bool:
        """Redis refused what these runs printed. Returns whether it is worth another try."""
        return any([found.refuse(runs[name]) for name, found in self._commands.items()])

    def _login(self, ask: Callable[[Command, str], str | None]) -> Login | None:
        asked = {name: ask(found, name) for name, found in self._commands.items()}
        if None in asked.values():
            return None
        texts: dict[str, Any] = self._texts | asked
        of_url = _of_url(texts["url"]).options
        user = texts["user"] or of_url.get("username")
        password = texts["password"] or of_url.get("password")
        return (user, password or "") if user else (password,) if password else ()
