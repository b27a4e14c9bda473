"""A receiver with Flask. Needs `pip install flask standardwebhooks`."""

import os

from flask import Flask, request
from standardwebhooks import Webhook, WebhookVerificationError

app, webhook = Flask(__name__), Webhook(os.environ["WEBHOOK_SECRET"])
seen: set[str] = set()


def report(event: dict) -> None:
    if event.get("event_type", "").endswith(".expired"):  # there are others, and there will be more
        print(
            f"{event['event_type']} {event['data'].get('reservation_id') or event['data']['id']}\n", end="", flush=True
        )


@app.post("/")
def receive() -> tuple[str, int]:
    try:
        event = webhook.verify(request.get_data(), {name.lower(): value for name, value in request.headers})
    except WebhookVerificationError:
        return "", 401
    if (event_id := request.headers["webhook-id"]) not in seen:
        seen.add(event_id)
        report(event)
    return "", 204


app.run("127.0.0.1", int(os.environ.get("PORT", "8080")))
