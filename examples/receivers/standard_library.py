"""A receiver without a framework. Needs `pip install standardwebhooks`; events are kept in SQLite."""

import json
import os
import sqlite3
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["WEBHOOK_SECRET"])


def report(event: dict) -> None:
    if event.get("event_type", "").endswith(".expired"):  # there are others, and there will be more
        print(
            f"{event['event_type']} {event['data'].get('reservation_id') or event['data']['id']}\n", end="", flush=True
        )


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            webhook.verify(body, {name.lower(): value for name, value in self.headers.items()})
        except WebhookVerificationError:
            self.answer(401)
            return
        with sqlite3.connect("events.db") as database:  # committed before the answer
            database.execute("CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, body TEXT)")
            event_id = self.headers["webhook-id"]
            new = database.execute("INSERT OR IGNORE INTO events VALUES (?, ?)", (event_id, body.decode())).rowcount
        if new:
            event = json.loads(body)
            report(event)
        self.answer(204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Receiver).serve_forever()
