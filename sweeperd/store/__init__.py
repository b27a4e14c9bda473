"""Everything that speaks Redis: shards, key names, the server's clock, scripts, leases."""
