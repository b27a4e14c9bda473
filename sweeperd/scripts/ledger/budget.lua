-- Reads a budget.
--
-- KEYS[1] -> budget:<scope>:<unit>  HASH
-- ARGV[1] -> scope
-- Returns {'ok', answer} or {'refused', code, scope}. The answer is JSON.

-- @include amounts
-- @include budgets

local mentions, each = budgets.read(KEYS, ARGV)
if not mentions then
  return each
end
if #each == 0 then
  return {'refused', 'NO_BUDGET', ARGV[1]}
end
return {'ok', cjson.encode({balances = budgets.balances(each)})}
