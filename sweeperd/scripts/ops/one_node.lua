-- Are these keys on one node of a Cluster? While a Cluster moves a slot, some keys of the slot are on another node, and
-- Redis refuses to run a script with such KEYS.
--
-- KEYS -> names in the shard's slot; the script does not read the keys
--
-- Returns TIME.

return redis.call('TIME')
