"""What the tests of the settings share: the defaults, a shortest endpoint, and what the problems say."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from sweeperd.errors import ConfigError

#: The contract's section 8.
DEFAULTS = {
    "redis.url": "redis://127.0.0.1:6379/0",
    "redis.connect_timeout": timedelta(seconds=5),
    "redis.socket_timeout": timedelta(seconds=5),
    "keys.prefix": "",
    "shards": [],
    "sweep.interval": timedelta(seconds=5),
    "sweep.precision": timedelta(milliseconds=50),
    "sweep.grace": timedelta(0),
    "sweep.batch_size": 1000,
    "sweep.pipeline_depth": 50,
    "sweep.pipeline_depth_min": 4,
    "sweep.batch_time": timedelta(milliseconds=2),
    "sweep.max_lag": timedelta(seconds=15),
    "sweep.time_budget": timedelta(seconds=30),
    "sweep.lease_ttl": timedelta(seconds=15),
    "sweep.audit_retention": timedelta(days=30),
    "sweep.audit_spread": 0.01,
    "reservations.enabled": True,
    "kinds": [],
    "reconcile.interval": timedelta(days=1),
    "reconcile.rate": 1000,
    "events.retention": timedelta(days=30),
    "events.wait_replicas": 0,
    "events.wait_timeout": timedelta(seconds=1),
    "events.attempts_kept": 1000,
    "events.balances": False,
    "events.groups": [],
    "events.group_max_age": timedelta(days=90),
    "webhooks.concurrency": 16,
    "webhooks.timeout": timedelta(seconds=10),
    "webhooks.connect_timeout": timedelta(seconds=5),
    "webhooks.attempts": 3,
    "webhooks.backoff_initial": timedelta(seconds=1),
    "webhooks.backoff_max": timedelta(seconds=30),
    "webhooks.redelivery_initial": timedelta(seconds=30),
    "webhooks.redelivery_max": timedelta(hours=1),
    "webhooks.probe_max": timedelta(minutes=1),
    "webhooks.max_age": timedelta(hours=72),
    "webhooks.endpoints": [],
    "cycles.enabled": False,
    "cycles.dispatch_backlog": 1000,
    "cycles.event_ttl": timedelta(days=90),
    "cycles.delivery_ttl": timedelta(days=14),
    "cycles.spike_factor": 5,
    "cycles.spike_window": timedelta(minutes=5),
    "http.listen": "127.0.0.1:9464",
    "http.hosts": [],
    "http.entries": False,
    "http.runbook": "",
    "metrics.tenant_label": True,
    "metrics.tenant_limit": 1000,
    "metrics.tenant_length": 64,
    "log.level": "info",
    "log.format": "auto",
    "shutdown_grace": timedelta(seconds=25),
}

ENDPOINT = '[[webhooks.endpoints]]\nname = "billing"\nurl = "https://billing.example.com/hook"\n'
DURATION = "a duration"
NO_REDIS_URL = "not a URL of Redis"
BLANK_URL = "white space or a control character"
NO_HTTP_URL = "not a URL with http:// or https:// and a host"
ASTRAY = "an @ after the host"


def flat(section: BaseModel, stem: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value; secrets as they are."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from flat(value, f"{stem}{name}.")
        else:
            yield stem + name, value.get_secret_value() if isinstance(value, SecretStr) else value


def problems(error: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    return str(error.value).splitlines()
