-- Opens a budget with nothing spent. An existing budget stays as it is.
--
-- KEYS[1] -> budget:<scope>:<unit>  HASH
-- ARGV[1] -> scope;  ARGV[2] -> unit;  ARGV[3] -> allocated;  ARGV[4] -> overdraft limit
-- Returns 1; 0 if the key exists already.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'scope', ARGV[1], 'unit', ARGV[2], 'allocated', ARGV[3], 'remaining', ARGV[3],
  'reserved', '0', 'spent', '0', 'debt', '0', 'overdraft_limit', ARGV[4], 'is_over_limit', 'false', 'status', 'ACTIVE')
return 1
