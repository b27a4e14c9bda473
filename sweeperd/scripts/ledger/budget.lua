-- Reads a budget.
--
-- KEYS[1] -> budget:<scope>:<unit>  HASH
-- ARGV[1] -> the hash of the request;  ARGV[2] -> scope;  ARGV[3] -> unit
-- Returns {'ok', answer, hash} or {'refused', code, scope, hash}. The answer is JSON.

-- @include answered
-- @include budgets
-- @include json

local function run()
  local mentions, each = budgets.read(KEYS, {ARGV[2]})
  if not mentions then
    return each
  end
  if #each == 0 then
    return {'refused', 'NO_BUDGET', ARGV[2]}
  end
  return {'ok', json.encode({unit = ARGV[3], balances = budgets.balances(each)})}
end

return answered(run(), ARGV[1])
