"""A receiver with FastAPI. Needs `pip install fastapi uvicorn standardwebhooks`."""

import os

import uvicorn
from fastapi import FastAPI, Request, Response
from standardwebhooks import Webhook, WebhookVerificationError

app, webhook = FastAPI(), Webhook(os.environ["WEBHOOK_SECRET"])
seen: set[str] = set()


def report(event: dict) -> None:
    if event.get("event_type", "").endswith(".expired"):  # there are others, and there will be more
        print(
            f"{event['event_type']} {event['data'].get('reservation_id') or event['data']['id']}\n", end="", flush=True
        )


@app.post("/")
async def receive(request: Request) -> Response:
    try:
        event = webhook.verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        return Response(status_code=401)
    if (event_id := request.headers["webhook-id"]) not in seen:
        seen.add(event_id)
        report(event)
    return Response(status_code=204)


uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8080")))
