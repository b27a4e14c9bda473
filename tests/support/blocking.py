"""An AsyncLedger called as a Ledger: each call runs in the one event loop, which has a thread of its own."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

from sweeperd.ledger import AsyncLedger, Ledger


class Blocking:
    """Waits for each coroutine. May be shared by threads."""

    def __init__(self, make: Callable[[], AsyncLedger]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._ledger = self._wait(self._made(make))

    async def _made(self, make: Callable[[], AsyncLedger]) -> AsyncLedger:
        return make()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self._wait(getattr(self._ledger, name)(*args, **kwargs))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._wait(self._ledger.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def blocking(make: Callable[[], AsyncLedger]) -> Ledger:
    """The ledger that `make` makes, for code that takes a Ledger. The caller closes it."""
    return cast(Ledger, Blocking(make))
