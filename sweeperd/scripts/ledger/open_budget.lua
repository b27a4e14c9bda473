-- Opens an unspent budget. Of an existing budget, only the thresholds change.
--
-- KEYS[1] -> budget:<scope>:<unit>  HASH
-- ARGV[1] -> the hash of the request;  ARGV[2] -> scope;  ARGV[3] -> unit
-- ARGV[4] -> allocated;  ARGV[5] -> overdraft limit
-- ARGV[6] -> thresholds: whole percentages, ascending, separated by commas; '' for none. Optional: without it an
--            existing budget is refused
-- Returns {'ok', answer, hash} or {'refused', code, scope, hash}. The answer is JSON.

-- @include answered
-- @include budgets
-- @include json

local function run()
  local scope, allocated, limit, thresholds = ARGV[2], ARGV[4], ARGV[5], ARGV[6]
  local balances = {{scope, allocated, allocated, '0', '0', '0', limit, false, 'ACTIVE'}}
  local row = {'scope', scope, 'unit', ARGV[3], 'allocated', allocated, 'remaining', allocated, 'reserved', '0',
    'spent', '0', 'debt', '0', 'overdraft_limit', limit, 'is_over_limit', 'false', 'status', 'ACTIVE'}
  if redis.call('EXISTS', KEYS[1]) == 1 then
    if not thresholds then
      return {'refused', 'BUDGET_EXISTS', scope}
    end
    local mentions, each = budgets.read(KEYS, {scope})
    if not mentions then
      return each
    end
    balances, row = budgets.balances(each), {}
  end
  if thresholds then
    row[#row + 1], row[#row + 2] = 'thresholds', thresholds
  end
  local answer = json.encode({unit = ARGV[3], balances = balances})
  redis.call('HSET', KEYS[1], unpack(row))
  return {'ok', answer}
end

return answered(run(), ARGV[1])
