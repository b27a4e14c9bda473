-- A script may write after a command whose answer is another one at each run, such as TIME or XADD. A Redis 6.2 that is
-- configured with `lua-replicate-commands no` refuses such a write, unless the script has asked before its first write
-- that its writes are replicated in its place. From 7.0 on, they always are.

if redis.replicate_commands and not redis.acl_check_cmd then
  redis.replicate_commands()
end
