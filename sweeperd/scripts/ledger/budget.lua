-- Reads a budget.
--
-- KEYS[1] -> budget:<scope>:<unit>  HASH
--
-- ARGV[1] -> scope
-- ARGV[2] -> unit
--
-- Returns {'ok', answer} or {'refused', code, scope}. The answer is JSON.

-- @include budgets
-- @include json

local mentions, each = budgets.read(KEYS, {ARGV[1]})
if not mentions then
  return each
end
if #each == 0 then
  return {'refused', 'NO_BUDGET', ARGV[1]}
end
return {'ok', json.encode({unit = ARGV[2], balances = budgets.balances(each)})}
