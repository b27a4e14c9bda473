"""A user of Redis whose password changes, and a command that prints the present one."""

import json
import secrets
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

USER = "rotating"


class Rotation:
    """One user on these servers. With a `lifetime` in seconds, the command prints JSON, and old passwords end then."""

    def __init__(self, clients: Sequence[redis.Redis], folder: Path, rules: Sequence[str], lifetime: float = 0) -> None:
        self._clients = clients
        self._lifetime = lifetime
        self._file, self._runs = folder / "password", folder / "runs"
        self._script = folder / "print-password"
        self._script.write_text(f"echo run >> {self._runs}\necho a warning\ncat {self._file}\n")
        self._runs.touch()
        #: All passwords so far.
        self.passwords: list[str] = []
        for client in clients:
            client.execute_command("ACL", "SETUSER", USER, "reset", *rules)
        self.turn()

    @property
    def command(self) -> str:
        return f"exec:/bin/sh {shlex.quote(str(self._script))}"

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines())

    def turn(self) -> None:
        """A new password; the one before it is refused from now on."""
        password = secrets.token_hex(16)
        text = {"password": password, "expires_in": self._lifetime} if self._lifetime else None
        for client in self._clients:
            client.execute_command("ACL", "SETUSER", USER, f">{password}")
        written = self._file.with_suffix(".new")
        written.write_text((json.dumps(text) if text else password) + "\n")
        written.rename(self._file)
        for old in self.passwords[-1:]:
            for client in self._clients:
                client.execute_command("ACL", "SETUSER", USER, f"<{old}")
        self.passwords.append(password)

    def disconnect(self) -> None:
        """Close the user's connections."""
        for client in self._clients:
            client.execute_command("CLIENT", "KILL", "USER", USER)

    def oldest(self) -> int:
        """The age of the user's oldest connection, seconds."""
        ages = [each["age"] for client in self._clients for each in client.client_list() if each["user"] == USER]
        return max(map(int, ages), default=0)

    @contextmanager
    def turning(self, every: float, *, disconnecting: bool = False) -> Iterator[None]:
        """A new password again and again while the block lasts."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(every):
                self.turn()
                if disconnecting:
                    self.disconnect()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
