-- Opens an unspent budget. An existing budget stays unchanged.
--
-- KEYS[1] -> budget:<scope>:<unit>  HASH
--
-- ARGV[1] -> the hash of the request
-- ARGV[2] -> scope
-- ARGV[3] -> unit
-- ARGV[4] -> allocated
-- ARGV[5] -> overdraft limit
--
-- Returns {'ok', the hash of the request} or {'refused', code, scope, the hash of the request}.

-- @include answered

local function run()
  if redis.call('EXISTS', KEYS[1]) == 1 then
    return {'refused', 'BUDGET_EXISTS', ARGV[2]}
  end
  redis.call('HSET', KEYS[1], 'scope', ARGV[2], 'unit', ARGV[3], 'allocated', ARGV[4], 'remaining', ARGV[4],
    'reserved', '0', 'spent', '0', 'debt', '0', 'overdraft_limit', ARGV[5], 'is_over_limit', 'false',
    'status', 'ACTIVE')
  return {'ok'}
end

return answered(run(), ARGV[1])
