-- A script may write after a command with another answer at each run, such as TIME or XADD. If Redis 6.2 is configured
-- with `lua-replicate-commands no`, the server refuses such a write, unless the script has asked before the first write
-- to replicate its writes in place of itself. From 7.0 on, the writes are always replicated.

if redis.replicate_commands and not redis.acl_check_cmd then
  redis.replicate_commands()
end
