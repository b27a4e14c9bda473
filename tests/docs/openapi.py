"""The OpenAPI document of the webhooks, made of the models of their bodies."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from sweeperd import __version__

#: Header -> what it is, and whether every request has it.
HEADERS: dict[str, tuple[str, bool]] = {
    "webhook-id": ("The event id, evt_..., or batch_... for a batch. The key to drop duplicates by.", True),
    "webhook-timestamp": ("Seconds since the epoch, on Redis's clock, when this attempt was signed.", True),
    "webhook-signature": (
        "Standard Webhooks: `v1,` and base64 of HMAC-SHA256 over `id.timestamp.body`, or `v1a,` and base64 of an "
        "ed25519 signature; one for each secret, separated by spaces. Absent without a secret.",
        False,
    ),
    "X-Cycles-Signature": ("`sha256=` and hex HMAC-SHA256 of the body. Absent without a shared secret.", False),
    "X-Cycles-Event-Id": ("The event id. Absent in a batch.", False),
    "X-Cycles-Event-Type": ("The event type. Absent in a batch.", False),
    "X-Cycles-Trace-Id": ("The event's trace id. Absent in a batch.", False),
    "X-Sweeperd-Sequence": ("The place of the event in its stream, in the order of the stream as text.", False),
    "traceparent": ("W3C trace context.", False),
}
ANSWERS = {
    "2XX": "The event is delivered.",
    "410": "The endpoint is paused until an operator resumes it.",
    "default": "The event is sent again later. Retry-After is honoured; redirects are not followed.",
}


def openapi(webhook: Mapping[str, Any], events: Mapping[str, tuple[str, Any]], parts: Callable[[Any], Any]) -> str:
    """
    `webhook`: the schema of a body. `events`: type -> category and model; without a category of configured kinds.
    `parts`: schema and definitions of a model.
    """
    envelope = {name: value for name, value in webhook.items() if name not in ("$schema", "$defs", "allOf", "title")}
    schemas: dict[str, Any] = {"Event": envelope, **{name: webhook["$defs"][name] for name in ("Actor",)}}
    webhooks = {}
    for event_type, (category, model) in events.items():
        data, definitions = parts(model)
        schemas |= definitions
        schemas[model.__name__] = data
        webhooks[event_type] = _operation(event_type, category, {"$ref": f"#/components/schemas/{model.__name__}"})
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Webhooks of sweeperd",
            "version": __version__,
            "license": {"name": "MIT", "identifier": "MIT"},
            "description": "One signed POST for each event, at least once. Drop duplicates by webhook-id.",
        },
        "webhooks": webhooks,
        "components": {
            "schemas": schemas,
            "parameters": {
                name: {
                    "name": name,
                    "in": "header",
                    "required": always,
                    "description": text,
                    "schema": {"type": "string"},
                }
                for name, (text, always) in HEADERS.items()
            },
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False).replace("#/$defs/", "#/components/schemas/") + "\n"


def _operation(event_type: str, category: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without a category: of configured kinds, whose names are the user's."""
    named = {"event_type": {"const": event_type}, "category": {"const": category}} if category else {}
    body = {"allOf": [{"$ref": "#/components/schemas/Event"}, {"properties": named | {"data": data}}]}
    single, batch = body, {"type": "array", "items": body, "minItems": 1}
    return {
        "post": {
            "summary": event_type,
            "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in HEADERS],
            "requestBody": {
                "required": True,
                "description": "An array if the endpoint's batch_size is above 1.",
                "content": {"application/json": {"schema": {"oneOf": [single, batch]}}},
            },
            "responses": {status: {"description": text} for status, text in ANSWERS.items()},
        }
    }
