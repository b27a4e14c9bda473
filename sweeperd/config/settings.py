"""Settings: a TOML file and the environment, to typed and validated values."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sweeperd import redis_url
from sweeperd.config.kinds import KindSettings, check_kinds
from sweeperd.config.secrets import check_secret
from sweeperd.config.tls import OptionalPemFile, PemFile, check_certificates, check_key
from sweeperd.config.types import Duration, OptionalDuration, PositiveDuration, Section

#: What makes sense for `sweep.lease_ttl`.
MIN_LEASE_TTL, MAX_LEASE_TTL = timedelta(seconds=1), timedelta(minutes=10)

#: The name of the only shard, where there is no list of them.
DEFAULT_SHARD = "default"
#: Headers that a request has anyway; the ones that an endpoint adds must not replace them.
_OWN_HEADERS = re.compile(r"webhook-.*|x-cycles-.*|traceparent|user-agent|content-(type|length)|host", re.IGNORECASE)


_POSITIVE: TypeAdapter[timedelta] = TypeAdapter(PositiveDuration)


def _lease_ttl(value: timedelta) -> timedelta:
    if not MIN_LEASE_TTL <= value <= MAX_LEASE_TTL:
        # Shorter, a renewal that is a moment late loses it; longer, one that died keeps all others from the work.
        raise ValueError('must be from "1s" to "10m"')
    return value


def _redis_url(value: SecretStr) -> SecretStr:
    redis_url.parse(value.get_secret_value())
    return value


def _http_url(value: SecretStr) -> SecretStr:
    authority = re.split("[/?#]", value.get_secret_value().partition("://")[2])[0]
    redis_url.check_port(authority.rpartition("@")[2])
    try:
        parts = urlsplit(value.get_secret_value())
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("not a URL with http:// or https:// and a host")
    if "@" in parts.path or "@" in parts.fragment or parts.netloc.endswith(":"):
        # It may be a piece of a password, which would be shown with the path and sent to another host.
        raise ValueError(
            "an @ after the host: user and password are written with %2F, %3F, %23 and %40 for `/`, `?`, `#` and `@`, "
            "and a path with %40"
        )
    return value


def _fetched(value: object, info: ValidationInfo) -> object:
    """What is secret may stand in a file (`file:PATH`) or in the environment (`env:NAME`)."""
    if not isinstance(value, str):
        return value
    if value.startswith("file:"):
        try:
            return Path(value.removeprefix("file:")).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ValueError(f"the file cannot be read: {reason}") from None
    if value.startswith("env:"):
        variable = value.removeprefix("env:")
        environment: Mapping[str, str] = (info.context or {}).get("environment", os.environ)
        if variable not in environment:
            raise ValueError(f"the environment has no variable {variable}")
        return environment[variable]
    return value


def _unread(value: object, info: ValidationInfo) -> bool:
    """Whether it stands elsewhere, and the command that loads the settings needs no secrets."""
    elsewhere = isinstance(value, str) and value.startswith(("file:", "env:"))
    return elsewhere and not (info.context or {}).get("secrets", True)


def _secret(value: object, info: ValidationInfo) -> object:
    if _unread(value, info):
        return value
    value = _fetched(value, info)
    if not isinstance(value, str):
        raise ValueError("a secret is text")  # noqa: TRY004 - pydantic takes ValueError
    check_secret(value)
    return value


def _proxy(value: object, info: ValidationInfo) -> object:
    return None if _unread(value, info) else _fetched(value, info)


def _proxy_url(value: SecretStr | None) -> SecretStr | None:
    if value is None:
        return None
    if not _http_url(value).get_secret_value().lower().startswith("http:"):
        raise ValueError("must begin with http://: TLS goes through the proxy to the receiver, not to the proxy itself")
    return value


def _start(value: object) -> object:
    if value in ("now", "beginning"):
        return value
    try:
        return _POSITIVE.validate_python(value)
    except ValidationError:
        raise ValueError('must be "now", "beginning" or a duration such as "6h"') from None


def _host_and_port(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise ValueError('must be "host:port", or "" to turn HTTP off')
    if int(port) > redis_url.MAX_PORT:
        raise ValueError(f"a port is a number from 0 (any free one) to {redis_url.MAX_PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)


#: Stands in metrics, in log lines and in the names of consumer groups.
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
#: The types of events that are no expiries. One is made only where an endpoint names it.
EXPIRY_SPIKE, WEBHOOK_DISABLED = "reservation.expiry_rate_spike", "webhook.disabled"
DELIVERY_FAILED = "system.webhook_delivery_failed"
ANNOUNCED = frozenset({EXPIRY_SPIKE, WEBHOOK_DISABLED, DELIVERY_FAILED})
#: An event type (`reservation.expired`) or a category (`reservation`).
EventName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$")]
#: A scope, or the beginning of scopes with `*` at its end.
ScopePattern = Annotated[str, Field(pattern=r"^(\*|[^*]+\*?)$")]
#: The name of a host, without port.
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})$")]
LeaseTtl = Annotated[Duration, AfterValidator(_lease_ttl)]
RedisUrl = Annotated[SecretStr, BeforeValidator(_fetched), AfterValidator(_redis_url)]
HttpUrl = Annotated[SecretStr, AfterValidator(_http_url)]
#: It may hold a password, so it may stand in a file or in the environment.
OptionalProxyUrl = Annotated[SecretStr | None, BeforeValidator(_proxy), AfterValidator(_proxy_url)]
#: How an event is written: as sweeperd's own JSON object, or as a CloudEvent 1.0 in structured mode.
Format = Literal["event", "cloudevents"]
#: Where the group of a new endpoint begins: now, at the first event of the stream, or so long ago.
Start = Annotated[Literal["now", "beginning"] | timedelta, BeforeValidator(_start)]
#: The text as it stands: the signatures differ in what they make of it.
WebhookSecret = Annotated[SecretStr, BeforeValidator(_secret)]


class RedisSettings(Section):
    """How to reach Redis."""

    url: RedisUrl = SecretStr("redis://127.0.0.1:6379/0")
    connect_timeout: PositiveDuration = timedelta(seconds=5)
    socket_timeout: PositiveDuration = timedelta(seconds=5)


def check_prefix(url: RedisUrl, prefix: str) -> None:
    """Raises ValueError where the scripts could not run, because their keys would be spread over a Cluster."""
    topology = redis_url.parse(url.get_secret_value()).topology
    if topology is redis_url.Topology.CLUSTER and not redis_url.hash_tag(prefix):
        raise ValueError(
            'needs a hash tag, such as "{tenant-a}:", so that all keys lie in one slot of the cluster behind the url'
        )


class KeysSettings(Section):
    """What the names of the keys begin with."""

    prefix: str = ""


class ShardSettings(Section):
    """One of several shards."""

    name: Identifier
    url: RedisUrl
    prefix: str = ""


class SweepSettings(Section):
    """How often, how much and how long to sweep."""

    interval: PositiveDuration = timedelta(seconds=5)
    grace: Duration = timedelta(0)
    batch_size: int = Field(default=1000, ge=1, le=10_000)
    pipeline_depth: int = Field(default=50, ge=1, le=1000)
    pipeline_depth_min: int = Field(default=4, ge=1, le=1000)
    batch_time: PositiveDuration = timedelta(milliseconds=2)
    max_lag: PositiveDuration = timedelta(seconds=15)
    time_budget: PositiveDuration = timedelta(seconds=30)
    lease_ttl: LeaseTtl = timedelta(seconds=15)
    audit_retention: PositiveDuration = timedelta(days=30)
    audit_spread: float = Field(default=0.01, ge=0, le=1, allow_inf_nan=False)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        # The default of the one is no reason to refuse the other.
        if "pipeline_depth_min" in self.model_fields_set and self.pipeline_depth_min > self.pipeline_depth:
            raise ValueError("pipeline_depth_min is greater than pipeline_depth")
        return self


class ReconcileSettings(Section):
    """The daemon's own walk over all reservations."""

    interval: OptionalDuration = timedelta(days=1)
    rate: int = Field(default=1000, ge=1, le=1_000_000)


class EventsSettings(Section):
    """The event stream."""

    retention: PositiveDuration = timedelta(days=30)
    wait_replicas: int = Field(default=0, ge=0, le=100)
    wait_timeout: PositiveDuration = timedelta(seconds=1)
    attempts_kept: int = Field(default=1000, ge=0, le=100_000)


class EndpointSettings(Section):
    """One webhook receiver."""

    name: Identifier
    url: HttpUrl
    secrets: list[WebhookSecret] = []
    tenants: list[str] | None = None
    events: list[EventName] | None = None
    scopes: list[ScopePattern] | None = None
    format: Format = "event"
    batch_size: int = Field(default=1, ge=1, le=1000)
    batch_bytes: int = Field(default=1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    batch_wait: PositiveDuration = timedelta(milliseconds=50)
    start: Start = "now"
    max_rate: float | None = Field(default=None, gt=0, le=100_000, allow_inf_nan=False)
    headers: dict[str, SecretStr] = {}
    proxy: OptionalProxyUrl = None
    ca: OptionalPemFile = None
    client_cert: OptionalPemFile = None
    client_key: OptionalPemFile = None

    @field_validator("tenants", "events", "scopes")
    @classmethod
    def _asks_for_something(cls, names: list[str] | None) -> list[str] | None:
        if names == []:
            raise ValueError("an empty list would discard every event; leave it out for all events")
        return names

    @field_validator("headers")
    @classmethod
    def _headers_are_free(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ValueError(f"{name!r} is not the name of a header")
            if _OWN_HEADERS.fullmatch(name):
                raise ValueError(f"{name} is set by sweeperd itself")
            if not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", value.get_secret_value()):
                raise ValueError(f"the value of {name} cannot stand in a header")
        return headers

    @field_validator("ca", "client_cert")
    @classmethod
    def _holds_certificates(cls, file: PemFile | None, info: ValidationInfo) -> PemFile | None:
        if file is None:
            return None
        url: SecretStr | None = info.data.get("url")
        if url is not None and not url.get_secret_value().lower().startswith("https:"):
            raise ValueError("its url begins with http://, so no certificate would be used")
        check_certificates(file)
        return file

    @field_validator("client_key")
    @classmethod
    def _fits_the_certificate(cls, key: PemFile | None, info: ValidationInfo) -> PemFile | None:
        certificate: PemFile | None = info.data.get("client_cert")
        if certificate is not None:
            check_key(certificate, key)
        elif key is not None and "client_cert" in info.data:
            raise ValueError("needs a client_cert")
        return key


class WebhooksSettings(Section):
    """Delivery of the events."""

    concurrency: int = Field(default=16, ge=1, le=1024)
    one_core: Literal["auto", "on", "off"] = "auto"
    timeout: PositiveDuration = timedelta(seconds=10)
    connect_timeout: PositiveDuration = timedelta(seconds=5)
    attempts: int = Field(default=3, ge=1, le=100)
    backoff_initial: PositiveDuration = timedelta(seconds=1)
    backoff_max: PositiveDuration = timedelta(seconds=30)
    redelivery_initial: PositiveDuration = timedelta(seconds=30)
    redelivery_max: PositiveDuration = timedelta(hours=1)
    probe_max: PositiveDuration = timedelta(minutes=1)
    max_age: PositiveDuration = timedelta(hours=72)
    endpoints: list[EndpointSettings] = []

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.backoff_max < self.backoff_initial:
            raise ValueError("backoff_max is shorter than backoff_initial")
        if self.redelivery_max < self.redelivery_initial:
            raise ValueError("redelivery_max is shorter than redelivery_initial")
        names = [endpoint.name for endpoint in self.endpoints]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two endpoints are named {min(twice)}")
        if len(names) > self.concurrency:
            # Each endpoint has senders of its own, so that a slow one delays no other one.
            raise ValueError(f"concurrency must be at least the number of endpoints, {len(names)}")
        return self


class CyclesSettings(Section):
    """How to run with the services of a Cycles installation, in place of their own expiry sweep."""

    enabled: bool = False
    spike_factor: float = Field(default=5, gt=1, le=1000, allow_inf_nan=False)
    spike_window: PositiveDuration = timedelta(minutes=5)


#: The relay to a Cycles installation as one of the endpoints: its group, its state and its dead letters have this name,
#: which no other endpoint can have.
RELAY = EndpointSettings.model_construct(name="_cycles", url=SecretStr("cycles:"))


class HttpSettings(Section):
    """Where metrics and health are served."""

    listen: str = "127.0.0.1:9464"
    hosts: list[HostName] = []
    runbook: str = ""

    @field_validator("runbook")
    @classmethod
    def _is_an_address(cls, runbook: str) -> str:
        if runbook and not runbook.startswith(("https://", "http://")):
            raise ValueError("must begin with https:// or http://")
        return runbook

    @field_validator("listen")
    @classmethod
    def _has_host_and_port(cls, listen: str) -> str:
        if listen:
            _host_and_port(listen)
        return listen

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, or None where HTTP is off."""
        return _host_and_port(self.listen) if self.listen else None


class MetricsSettings(Section):
    """What the metrics carry."""

    tenant_label: bool = True
    tenant_limit: int = Field(default=1000, ge=1, le=100_000)
    tenant_length: int = Field(default=64, ge=16, le=1024)


class LogSettings(Section):
    """The log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"


class ReservationsSettings(Section):
    """The built-in kind."""

    enabled: bool = True


class Settings(Section):
    """All settings. `load` makes one."""

    redis: RedisSettings = RedisSettings()
    keys: KeysSettings = KeysSettings()
    shards: list[ShardSettings] = []
    sweep: SweepSettings = SweepSettings()
    reservations: ReservationsSettings = ReservationsSettings()
    kinds: list[KindSettings] = []
    reconcile: ReconcileSettings = ReconcileSettings()
    events: EventsSettings = EventsSettings()
    webhooks: WebhooksSettings = WebhooksSettings()
    cycles: CyclesSettings = CyclesSettings()
    http: HttpSettings = HttpSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()
    shutdown_grace: PositiveDuration = timedelta(seconds=25)

    @property
    def announced(self) -> frozenset[str]:
        """The types of events that are no expiries and are made because an endpoint names them."""
        return ANNOUNCED & {name for endpoint in self.webhooks.endpoints for name in endpoint.events or ()}

    @property
    def consumers(self) -> list[EndpointSettings]:
        """All that get the events of the outbox: the endpoints, and the relay to Cycles where it is enabled."""
        return [*self.webhooks.endpoints, *([RELAY] if self.cycles.enabled else [])]

    @property
    def all_shards(self) -> list[ShardSettings]:
        """The shards; the only one, where there is no list of them, is named DEFAULT_SHARD."""
        return self.shards or [ShardSettings(name=DEFAULT_SHARD, url=self.redis.url, prefix=self.keys.prefix)]

    @model_validator(mode="after")
    def _kinds_fit_together(self) -> Self:
        check_kinds(self.kinds, self.reservations.enabled)
        return self

    @model_validator(mode="after")
    def _shards_fit_together(self) -> Self:
        if not self.shards:
            return self
        alone = [
            key
            for key, section, field in (("redis.url", self.redis, "url"), ("keys.prefix", self.keys, "prefix"))
            if field in section.model_fields_set
        ]
        if alone:
            raise ValueError(f"{' and '.join(alone)} and [[shards]] cannot both be set: name every Redis in [[shards]]")
        names = [shard.name for shard in self.shards]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two shards are named {min(twice)}")
        places: dict[tuple[str, str], str] = {}
        for shard in self.shards:
            other = places.setdefault((shard.url.get_secret_value(), shard.prefix), shard.name)
            if other != shard.name:
                raise ValueError(f"the shards {other} and {shard.name} have the same url and prefix")
        needed = len(self.shards) * len(self.webhooks.endpoints)
        if needed > self.webhooks.concurrency:
            # Each endpoint has senders of its own on each shard, so that nothing there delays another shard.
            raise ValueError(
                f"webhooks.concurrency must be at least the number of shards times the number of endpoints, {needed}"
            )
        return self
