"""Defines the sections of the settings and checks that they fit together."""

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, field_validator, model_validator

from sweeperd import redis_url
from sweeperd.config.certificates import PemFile
from sweeperd.config.kinds import KindSettings, check_kinds
from sweeperd.config.secrets import is_reference
from sweeperd.config.types import (
    Credential,
    Duration,
    HostName,
    Identifier,
    OptionalDuration,
    OptionalPercentage,
    PositiveDuration,
    PositiveRetention,
    RedisUrl,
    Retention,
    Section,
    current_url,
    host_and_port,
)
from sweeperd.config.webhooks import (
    ANNOUNCED,
    EXPIRY_SPIKE,
    NO_TENANT,
    THRESHOLD_CROSSED,
    EndpointSettings,
    WebhooksSettings,
)
from sweeperd.text import did_you_mean

#: The bounds of `sweep.lease_ttl`.
MIN_LEASE_TTL, MAX_LEASE_TTL = timedelta(seconds=1), timedelta(minutes=10)

#: A shorter secret of an endpoint is easily guessed, or was meant as the name of a file or a variable.
SHORT_SECRET = 16

#: The name of the only shard when there is no list of shards.
DEFAULT_SHARD = "default"


def _lease_ttl(value: timedelta) -> timedelta:
    if not MIN_LEASE_TTL <= value <= MAX_LEASE_TTL:
        # A shorter lease is lost when a renewal is slightly late. A longer one delays the others when its holder dies.
        raise ValueError('must be from "1s" to "10m"')
    return value


LeaseTtl = Annotated[Duration, AfterValidator(_lease_ttl)]


class RedisSettings(Section):
    """How to reach Redis."""

    url: RedisUrl = SecretStr("redis://127.0.0.1:6379/0")
    user: Credential = SecretStr("")
    password: Credential = SecretStr("")
    connect_timeout: PositiveDuration = timedelta(seconds=5)
    socket_timeout: PositiveDuration = timedelta(seconds=5)


class KeysSettings(Section):
    prefix: str = ""


class ShardSettings(Section):
    name: Identifier
    url: RedisUrl
    prefix: str = ""


class SweepSettings(Section):
    """How often, how much and how long to sweep."""

    interval: PositiveDuration = timedelta(seconds=5)
    precision: Duration = timedelta(milliseconds=50)
    grace: Retention = timedelta(0)
    batch_size: int = Field(default=1000, ge=1, le=10_000)
    pipeline_depth: int = Field(default=50, ge=1, le=1000)
    pipeline_depth_min: int = Field(default=4, ge=1, le=1000)
    batch_time: PositiveDuration = timedelta(milliseconds=2)
    max_lag: PositiveDuration = timedelta(seconds=15)
    time_budget: PositiveDuration = timedelta(seconds=30)
    lease_ttl: LeaseTtl = timedelta(seconds=15)
    audit_retention: PositiveRetention = timedelta(days=30)
    audit_spread: float = Field(default=0.01, ge=0, le=1, allow_inf_nan=False)
    memory_limit: OptionalPercentage = 110

    @property
    def looks(self) -> bool:
        """Whether a daemon polls for deadlines between two ticks."""
        return timedelta(0) < self.precision < self.interval

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        # A default alone is not a reason to refuse a value that was set.
        if "pipeline_depth_min" in self.model_fields_set and self.pipeline_depth_min > self.pipeline_depth:
            raise ValueError("pipeline_depth_min is greater than pipeline_depth")
        return self


class ReconcileSettings(Section):
    """The daemon's periodic check of all reservations."""

    interval: OptionalDuration = timedelta(days=1)
    rate: int = Field(default=1000, ge=1, le=1_000_000)


class EventsSettings(Section):
    retention: PositiveRetention = timedelta(days=30)
    wait_replicas: int = Field(default=0, ge=0, le=100)
    wait_timeout: PositiveDuration = timedelta(seconds=1)
    attempts_kept: int = Field(default=1000, ge=0, le=100_000)
    balances: bool = False
    groups: list[Identifier] = Field(default=[], max_length=64)
    group_max_age: PositiveRetention = timedelta(days=90)


class CyclesSettings(Section):
    """How to replace the expiry sweep of a Cycles installation."""

    enabled: bool = False
    dispatch_backlog: int = Field(default=1000, ge=0, le=1_000_000)
    dispatch_wait: Duration = Field(default=timedelta(seconds=10), ge=timedelta(seconds=1), le=timedelta(hours=1))
    event_ttl: Retention = Field(default=timedelta(days=90), ge=timedelta(seconds=1))
    delivery_ttl: Retention = Field(default=timedelta(days=14), ge=timedelta(seconds=1))
    spike_factor: float = Field(default=5, gt=1, le=1000, allow_inf_nan=False)
    spike_window: PositiveDuration = timedelta(minutes=5)


#: The relay to a Cycles installation as an endpoint: the name of its group, its state and its dead letters. The name is
#: reserved. `start`: what sweeperd expired before the relay was on has no records, and it writes them too.
RELAY = EndpointSettings.model_construct(
    name="_cycles", url=SecretStr("cycles:"), batch_size=250, start=timedelta(hours=72)
)


class HttpSettings(Section):
    """The address of metrics and health."""

    listen: str = "127.0.0.1:9464"
    hosts: list[HostName] = []
    #: Of the newest release.
    runbook: str = "https://sweeperd.github.io/sweeperd/latest/runbook/"
    entries: bool = False

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
            host_and_port(listen)
        return listen

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, or None if HTTP is off."""
        return host_and_port(self.listen) if self.listen else None


class MetricsSettings(Section):
    tenant_label: bool = True
    tenant_limit: int = Field(default=1000, ge=1, le=100_000)
    tenant_length: int = Field(default=64, ge=16, le=1024)


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"


class ReservationsSettings(Section):
    enabled: bool = True


class Settings(Section):
    """All settings, made by `load`."""

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
    _watched: tuple[Path, ...] = PrivateAttr(())
    _secret_files: tuple[Path, ...] = PrivateAttr(())
    #: The CAs of the environment. When they change, the settings differ, so a reload picks them up.
    _bundle: PemFile | None = PrivateAttr(None)

    @property
    def bundle(self) -> PemFile | None:
        """The CAs that the environment names for all receivers."""
        return self._bundle

    @property
    def watched(self) -> tuple[Path, ...]:
        """The files with the endpoints' secrets, certificates and keys, as named in the settings."""
        return self._watched

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """The watched files that nobody else should be able to read."""
        return self._secret_files

    def watch(self, files: Iterable[Path], secret: Iterable[Path], bundle: PemFile | None = None) -> None:
        """Set `watched`, `secret_files` and the CAs of the environment. For `load`."""
        self._watched = tuple(sorted({*files, *([bundle.path] if bundle else ())}))
        self._secret_files, self._bundle = tuple(sorted(secret)), bundle

    @property
    def announced(self) -> frozenset[str]:
        """The types of operational events that are created because an endpoint names them."""
        return ANNOUNCED & {name for endpoint in self.webhooks.endpoints for name in endpoint.events or ()}

    @property
    def doubts(self) -> list[str]:
        """
        What is allowed and probably a mistake, a sentence each: names in the `events` of endpoints that no event has
        here, though older ones may; names whose events have no tenant or scope, so that the endpoint's filter lets none
        through; and secrets that are too short for one.
        """
        kinds = ["reservation", *(kind.name for kind in self.kinds)]
        of_kinds = {name: kind for kind in self.kinds for name in (kind.name, f"{kind.name}.expired")}
        # Of the types whose events all have the same tenant or scope; empty if they have none.
        tenants = dict.fromkeys(ANNOUNCED - {EXPIRY_SPIKE}, NO_TENANT)
        tenants |= {name: "" for name, kind in of_kinds.items() if kind.tenant is None}
        scopes = dict.fromkeys([*ANNOUNCED, *of_kinds], "")
        known = [*kinds, *(f"{kind}.expired" for kind in kinds), THRESHOLD_CROSSED, *sorted(ANNOUNCED)]
        found = []
        for endpoint in self.webhooks.endpoints:
            found += [
                f"no event is a {name}, which the endpoint {endpoint.name} asks for{did_you_mean(name, known)}"
                for name in endpoint.events or ()
                if name not in known
            ]
            for what, selected, same in (("tenant", endpoint.tenants, tenants), ("scope", endpoint.scopes, scopes)):
                found += [
                    f"the endpoint {endpoint.name} never gets a {name}: it has no {what},"
                    f" and the endpoint selects {what}s"
                    for name in endpoint.events or ()
                    if selected is not None and name in same and same[name] not in selected
                ]
            secrets = (secret.get_secret_value() for secret in endpoint.secrets)
            if any(len(secret) < SHORT_SECRET and not is_reference(secret) for secret in secrets):
                found.append(
                    f"a secret of the endpoint {endpoint.name} has fewer than {SHORT_SECRET} characters; is it the name"
                    " of a file or a variable, without file: or env:?"
                )
        return found

    @property
    def consumers(self) -> list[EndpointSettings]:
        """All readers of the outbox: the endpoints, and the relay to Cycles if enabled."""
        return [*self.webhooks.endpoints, *([RELAY] if self.cycles.enabled else [])]

    @property
    def all_shards(self) -> list[ShardSettings]:
        """The shards. Without a list, the only shard is named DEFAULT_SHARD."""
        return self.shards or [ShardSettings(name=DEFAULT_SHARD, url=self.redis.url, prefix=self.keys.prefix)]

    @model_validator(mode="after")
    def _groups_are_no_endpoints(self) -> Self:
        groups, endpoints = self.events.groups, {endpoint.name for endpoint in self.webhooks.endpoints}
        if len(set(groups)) < len(groups):
            raise ValueError("events.groups names a group twice")
        if both := endpoints.intersection(groups):
            raise ValueError(f"events.groups: {min(both)} is an endpoint, and sweeperd owns its group")
        return self

    @model_validator(mode="after")
    def _events_fit_together(self) -> Self:
        check_kinds(self.kinds, self.reservations.enabled)
        asking = [endpoint.name for endpoint in self.webhooks.endpoints if endpoint.balances]
        if asking and not self.events.balances:
            raise ValueError(f"the endpoint {asking[0]} has balances = true, which needs events.balances = true")
        return self

    @model_validator(mode="after")
    def _shards_fit_together(self) -> Self:
        if not self.shards:
            return self
        single = {
            "redis.url": "url" in self.redis.model_fields_set,
            "keys.prefix": "prefix" in self.keys.model_fields_set,
        }
        if alone := [key for key, given in single.items() if given]:
            raise ValueError(f"{' and '.join(alone)} and [[shards]] cannot both be set: name every Redis in [[shards]]")
        names = [shard.name for shard in self.shards]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two shards are named {min(twice)}")
        places: dict[tuple[object, ...], str] = {}
        for shard in self.shards:
            other = places.setdefault((*redis_url.place(current_url(shard.url)), shard.prefix), shard.name)
            if other != shard.name:
                raise ValueError(f"the shards {other} and {shard.name} have the same url and prefix")
        if len(self.shards) > self.webhooks.concurrency:
            raise ValueError(f"webhooks.concurrency must be at least the number of shards, {len(self.shards)}")
        return self
