-- Checks that the keys are on one node of a Cluster. While a slot migrates, its keys are spread over two nodes, and
-- Redis refuses to run a script on such KEYS.
--
-- KEYS -> names in the shard's slot; the script does not read the keys
--
-- Returns TIME.

return redis.call('TIME')
