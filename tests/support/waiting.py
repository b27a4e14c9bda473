"""Calls that wait for another thread."""

import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.support.harness import eventually


def waits(thread: threading.Thread) -> bool:
    """Whether it waits for a condition or an event at this moment."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) == (threading.__file__, "wait")


class Background:
    """A call in a thread of its own, which has begun."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._results: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def must_wait(self) -> None:
        """Fails if the call ends in place of waiting."""
        eventually(lambda: waits(self._thread) or not self._thread.is_alive(), limit=5)
        assert self._thread.is_alive(), "it has not waited"

    def result(self) -> Any:
        """What the call returns; fails where it goes on waiting."""
        self._thread.join(5)
        assert self._results, "it still waits"
        return self._results[0]

    def _run(self) -> None:
        self._results.append(self._call())
