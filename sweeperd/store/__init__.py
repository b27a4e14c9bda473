"""Talks to Redis: shards, key names, the server's clock, scripts, leases."""

from sweeperd.store.keys import Keys
from sweeperd.store.shard import Clock, Shard, open_shards
