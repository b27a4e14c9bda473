"""Everything that talks to Redis: shards, key names, the server's clock, scripts, leases."""
