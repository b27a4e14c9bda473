"""Receives the demo's webhooks, and verifies their signatures with the `standardwebhooks` package."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from standardwebhooks import Webhook, WebhookVerificationError

from sweeperd.web import receiver


class Receiver(receiver.Receiver):
    """Listens on a free loopback port during the `with` block, and calls `on_webhook` with each reservation's id."""

    def __init__(self, secret: str, on_webhook: Callable[[str], None]) -> None:
        super().__init__(("127.0.0.1", 0), self._take)
        self._webhook = Webhook(secret)
        self._on_webhook = on_webhook
        self._lock = threading.Lock()
        #: Reservation -> number of verified webhooks.
        self.verified: Counter[str] = Counter()
        self.refused = 0

    def _take(self, body: bytes, headers: Mapping[str, str]) -> int:
        try:
            name: str = self._webhook.verify(body, dict(headers))["data"]["reservation_id"]
        except (WebhookVerificationError, ValueError, KeyError, TypeError):
            with self._lock:
                self.refused += 1
            return 400
        with self._lock:
            self.verified[name] += 1
        self._on_webhook(name)
        return 200
