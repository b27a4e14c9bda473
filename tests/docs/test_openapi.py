"""The OpenAPI document is valid, and describes the requests that are sent; so does the table of retries."""

import base64
import json
import re
from typing import Any

import jsonschema
import pytest
import redis
from openapi_spec_validator import OpenAPIV31SpecValidator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from sweeperd.config.webhooks import WebhooksSettings
from tests.docs.generate import OPENAPI, REFERENCE
from tests.docs.openapi import HEADERS
from tests.support.harness import environment, once, reserve
from tests.support.receiver import Receiver
from tests.support.servers import Server

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
#: What every HTTP request has.
PLAIN = {"Host", "User-Agent", "Accept-Encoding", "Accept", "Connection", "Content-Type", "Content-Length"}


def document() -> Any:
    return json.loads(OPENAPI.read_text(encoding="utf-8"))


def test_it_is_valid() -> None:
    OpenAPIV31SpecValidator(document()).validate()


@pytest.mark.parametrize("batch_size", [1, 10])
def test_it_describes_what_is_sent(batch_size: int, server: Server, client: redis.Redis) -> None:
    with Receiver() as receiver:
        endpoint = {"name": "r", "url": receiver.url, "secrets": [SECRET], "batch_size": batch_size}
        env = environment(server.url, endpoints=[endpoint])
        assert once(env).code == 0
        reserve(client, ["a"])
        assert once(env).code == 0
        (request,) = receiver.requests
    known = {name.lower() for name in HEADERS}
    sent = {name.lower() for name in request.headers} - {name.lower() for name in PLAIN}
    assert sent <= known
    assert {name.lower() for name, (_, always) in HEADERS.items() if always} <= sent
    resource = Resource.from_contents(document(), default_specification=DRAFT202012)
    registry: Registry[Any] = Registry().with_resource("urn:openapi", resource)
    body = "urn:openapi#/webhooks/reservation.expired/post/requestBody/content/application~1json/schema"
    jsonschema.Draft202012Validator({"$ref": body}, registry=registry).validate(request.event)


def test_the_table_of_retries_follows_the_defaults() -> None:
    settings = WebhooksSettings()
    page = (REFERENCE / "webhooks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (?:at once|([\dh mins]+)) \|$", page, re.MULTILINE)
    wait, at = settings.redelivery_initial.total_seconds(), 0.0
    assert f"`attempts` ({settings.attempts}) requests" in page
    for number, begins in rows:
        units = {"h": 3600, "min": 60, "s": 1}
        assert sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+) (h|min|s)", begins)) == at, number
        at, wait = at + min(wait, settings.redelivery_max.total_seconds()), wait * 2
    assert len(rows) == 8
    assert wait > settings.redelivery_max.total_seconds(), "every hour from here on"
