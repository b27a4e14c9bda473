-- A script may write after a nondeterministic command such as TIME or XADD. Redis 6.2 with `lua-replicate-commands no`
-- refuses such a write, unless the script has switched to effects replication first. Since 7.0 effects are always
-- replicated.

if redis.replicate_commands and not redis.acl_check_cmd then
  redis.replicate_commands()
end
