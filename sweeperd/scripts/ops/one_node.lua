-- KEYS -> names in the shard's slot
-- Returns TIME. While a Cluster moves the slot, it refuses this, because not all of the keys are on one node.
return redis.call('TIME')
