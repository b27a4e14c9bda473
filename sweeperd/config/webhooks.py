"""Defines the settings of webhook endpoints and of delivery."""

import re
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sweeperd.config.certificates import OptionalPemFile, PemFile, check_certificates, check_key
from sweeperd.config.secrets import check_secret, clean_secret, fetched_secret, is_reference, unread
from sweeperd.config.types import (
    DURATION,
    HttpUrl,
    Identifier,
    OptionalProxyUrl,
    PositiveDuration,
    PositiveRetention,
    Section,
    as_text,
    duration_text,
    matching,
)

#: The types of operational events, which are created only if an endpoint names them.
EXPIRY_SPIKE, WEBHOOK_DISABLED = "reservation.expiry_rate_spike", "webhook.disabled"
DELIVERY_FAILED = "system.webhook_delivery_failed"
WEBHOOK_FAILING, WEBHOOK_RECOVERED = "webhook.failing", "webhook.recovered"
#: The type of an operational event that the scripts create for a budget with thresholds.
THRESHOLD_CROSSED = "budget.threshold_crossed"
ANNOUNCED = frozenset({EXPIRY_SPIKE, WEBHOOK_DISABLED, DELIVERY_FAILED, WEBHOOK_FAILING, WEBHOOK_RECOVERED})
#: The tenant of an operational event that is about none.
NO_TENANT = "__system__"

#: Headers of every request, which an endpoint's own headers must not replace.
_OWN_HEADERS = re.compile(
    r"webhook-.*|x-cycles-.*|x-sweeperd-.*|traceparent|user-agent|content-(type|length)|host", re.IGNORECASE
)
#: Headers about the connection or the encoding of a request. With a wrong value every request fails.
_CONNECTION_HEADERS = re.compile(
    r"connection|expect|http2-settings|keep-alive|proxy-connection|te|trailer|transfer-encoding|upgrade", re.IGNORECASE
)
_NO_TOKEN = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_POSITIVE: TypeAdapter[timedelta] = TypeAdapter(PositiveRetention)


def _secret(value: object, info: ValidationInfo) -> object:
    if unread(value, info):
        return value
    value = fetched_secret(value, info)
    if not isinstance(value, str):
        raise ValueError("a secret is text")  # noqa: TRY004 - pydantic takes ValueError
    secret = clean_secret(value)
    check_secret(secret)
    return secret


def _start(value: object) -> object:
    if value in ("now", "beginning"):
        return value
    try:
        return _POSITIVE.validate_python(value)
    except ValidationError:
        raise ValueError('must be "now", "beginning" or a duration such as "6h"') from None


#: An event type (`reservation.expired`) or a category (`reservation`).
EventName = Annotated[
    str,
    *matching(
        r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$", 'must be an event type or a category, such as "reservation.expired"'
    ),
]
#: A scope, or a prefix of scopes followed by `*`.
ScopePattern = Annotated[str, *matching(r"^(\*|[^*]+\*?)$", "must be a scope; `*` may only be its last character")]
#: The format of an event: sweeperd's own JSON object, or a CloudEvent 1.0 in structured mode.
Format = Literal["event", "cloudevents"]
#: Where the group of a new endpoint starts: now, at the beginning of the stream, or this long ago.
Start = Annotated[
    Literal["now", "beginning"] | timedelta,
    BeforeValidator(_start),
    *as_text(f"^(now|beginning|{DURATION})$", lambda start: start if isinstance(start, str) else duration_text(start)),
]
#: The cleaned text, which each kind of signature decodes in its own way.
WebhookSecret = Annotated[
    SecretStr,
    BeforeValidator(_secret),
    PlainSerializer(lambda value: value.get_secret_value() if is_reference(value) else str(value), when_used="json"),
]


class EndpointSettings(Section):
    """One webhook receiver."""

    name: Identifier
    url: HttpUrl
    secrets: list[WebhookSecret] = []
    tenants: list[str] | None = None
    events: list[EventName] | None = None
    scopes: list[ScopePattern] | None = None
    format: Format = "event"
    balances: bool = False
    batch_size: int = Field(default=1, ge=1, le=1000)
    batch_bytes: int = Field(default=1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    batch_wait: PositiveDuration = timedelta(milliseconds=50)
    start: Start = "now"
    order: Literal["key"] | None = None
    order_key: Literal["id", "tenant"] = "id"
    max_rate: float | None = Field(default=None, gt=0, le=100_000, allow_inf_nan=False)
    timeout: PositiveDuration | None = None
    attempts: int | None = Field(default=None, ge=1, le=100)
    redelivery_max: PositiveDuration | None = None
    max_age: PositiveRetention | None = None
    headers: dict[str, SecretStr] = {}
    proxy: OptionalProxyUrl = None
    ca: OptionalPemFile = None
    client_cert: OptionalPemFile = None
    client_key: OptionalPemFile = None

    @property
    def trusts_the_environment(self) -> bool:
        """Whether the CAs of the environment, or certifi's, verify the receiver's certificate. A `ca` replaces both."""
        return self.ca is None and self.url.get_secret_value().lower().startswith("https:")

    @field_validator("tenants", "events", "scopes")
    @classmethod
    def _asks_for_something(cls, names: list[str] | None) -> list[str] | None:
        if names == []:
            raise ValueError("an empty list would discard every event; leave it out for all events")
        return names

    @model_validator(mode="after")
    def _has_an_order(self) -> Self:
        if "order_key" in self.model_fields_set and self.order is None:
            raise ValueError('order_key needs order = "key"')
        return self

    @field_validator("headers")
    @classmethod
    def _headers_are_free(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not name:
                raise ValueError("a header without a name")
            if wrong := _NO_TOKEN.search(name):
                # Shows the character only, because the name may be a whole line that includes the value.
                raise ValueError(f"{wrong[0]!r} is not allowed in a header's name")
            if _OWN_HEADERS.fullmatch(name):
                raise ValueError(f"{name} is set by sweeperd itself")
            if _CONNECTION_HEADERS.fullmatch(name):
                raise ValueError(f"{name} is about the connection, which sweeperd controls")
            text = value.get_secret_value()
            if not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", text):
                raise ValueError(f"the value of {name} is not allowed in a header")
            if text != text.strip(" \t"):
                raise ValueError(f"the value of {name} begins or ends with a space or a tab")
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
    timeout: PositiveDuration = timedelta(seconds=10)
    connect_timeout: PositiveDuration = timedelta(seconds=5)
    attempts: int = Field(default=3, ge=1, le=100)
    backoff_initial: PositiveDuration = timedelta(seconds=1)
    backoff_max: PositiveDuration = timedelta(seconds=30)
    redelivery_initial: PositiveDuration = timedelta(seconds=30)
    redelivery_max: PositiveDuration = timedelta(hours=1)
    probe_max: PositiveDuration = timedelta(minutes=1)
    max_age: PositiveRetention = timedelta(hours=72)
    endpoints: list[EndpointSettings] = []

    def of(self, endpoint: EndpointSettings) -> Self:
        """These settings for one endpoint: what it sets itself replaces the common value."""
        own = {name: getattr(endpoint, name) for name in ("timeout", "attempts", "redelivery_max", "max_age")}
        return self.model_copy(update={name: value for name, value in own.items() if value is not None})

    @property
    def longest_age(self) -> timedelta:
        return max([self.max_age, *(self.of(endpoint).max_age for endpoint in self.endpoints)])

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.backoff_max < self.backoff_initial:
            raise ValueError("backoff_max is shorter than backoff_initial")
        if self.redelivery_max < self.redelivery_initial:
            raise ValueError("redelivery_max is shorter than redelivery_initial")
        for endpoint in self.endpoints:
            if self.of(endpoint).redelivery_max < self.redelivery_initial:
                raise ValueError(f"redelivery_max of the endpoint {endpoint.name} is shorter than redelivery_initial")
        names = [endpoint.name for endpoint in self.endpoints]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two endpoints are named {min(twice)}")
        return self
