"""`sweeperd endpoints test`."""

from typing import Any

import click

from sweeperd.cli.names import endpoint_of
from sweeperd.cli.options import Exit, Options, fail, json_option, shard_option
from sweeperd.cli.output import Output
from sweeperd.cli.troubles import Troubles, for_each_shard
from sweeperd.ops import endpoints
from sweeperd.ops.endpoints import BODY_SHOWN, EndpointTest


@click.command("test")
@click.argument("name")
@click.option(
    "--count", type=click.IntRange(1, 10_000), default=1, show_default=True, help="So many events, in batches."
)
@json_option
@shard_option
@click.pass_obj
def test(options: Options, name: str, count: int, as_json: bool, shard: str | None) -> None:
    """
    Send it signed events of the type system.webhook_test, each once, and show the last request, its answer and timing.
    They are sent even while the endpoint is paused, until one request fails. A 2xx response closes an open circuit on
    all processes; nothing else is written to Redis.
    """
    output, troubles, trial = Output(as_json=as_json), Troubles(), None
    with options.shards(shard, secrets=True) as (settings, shards):
        endpoint = endpoint_of(settings, name)
        for one in shards:
            # Any shard will do: it is asked what time it is.
            if trial is None:
                with troubles.noted(one):
                    trial = endpoints.try_out(one, endpoint, settings.webhooks, count)
        if trial is not None and trial.delivered:
            for_each_shard(shards, lambda one: endpoints.close_if_open(one, name), troubles)
    if trial is None:
        troubles.end()
        return
    if as_json:
        output.json(_trial(trial))
    else:
        _show(output, trial)
    if not trial.delivered:
        fail(f"{name} did not take it: {trial.result}", Exit.FAILED)


def _trial(trial: EndpointTest) -> dict[str, Any]:
    return {
        "endpoint": trial.endpoint,
        "delivered": trial.delivered,
        "result": trial.result,
        "seconds": trial.seconds,
        "requests": trial.requests,
        "accepted": trial.accepted,
        "event_id": trial.event_id,
        "request": {"method": "POST", "url": trial.url, "headers": trial.request_headers, "body": trial.request_body},
        "response": {"status": trial.status, "headers": trial.response_headers, "body": trial.response_body},
    }


def _show(output: Output, trial: EndpointTest) -> None:
    output.say(f"POST {trial.url}", "bold")
    for name, value in trial.request_headers.items():
        output.say(f"{name}: {value}")
    output.say(trial.request_body if len(trial.request_body) <= BODY_SHOWN else trial.request_body[:BODY_SHOWN] + "…")
    output.say("")
    if trial.requests > 1 or trial.accepted > 1:
        output.say(f"{trial.accepted} events were accepted, in {trial.requests} requests; the last one:")
    output.say(f"{trial.result} after {trial.seconds * 1000:.0f} ms", "green" if trial.delivered else "red")
    for name, value in trial.response_headers.items():
        output.say(f"{name}: {value}")
    if trial.response_body:
        output.say(trial.response_body)
