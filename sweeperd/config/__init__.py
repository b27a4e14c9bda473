"""Loads the settings from a TOML file and the environment, typed and validated."""

from sweeperd.config.loading import CONFIG_PLACES, load
from sweeperd.config.settings import (
    DEFAULT_SHARD,
    RELAY,
    CyclesSettings,
    HttpSettings,
    RedisSettings,
    Settings,
    ShardSettings,
    SweepSettings,
)
from sweeperd.config.types import check_prefix
from sweeperd.config.webhooks import (
    DELIVERY_FAILED,
    EXPIRY_SPIKE,
    NO_TENANT,
    WEBHOOK_DISABLED,
    WEBHOOK_FAILING,
    WEBHOOK_RECOVERED,
    EndpointSettings,
    Format,
    Start,
    WebhooksSettings,
)
