-- Debits an amount without a reservation, in every budget of the scopes or in none.
--
-- KEYS[1] -> idem:event:<tenant>:<key>    STRING  what was answered under this idempotency key
-- KEYS[2..] -> budget:<scope>:<unit>      HASH    one for each scope
--
-- ARGV[1] -> the hash of the request
-- ARGV[2] -> unit
-- ARGV[3] -> amount: decimal int64, not below 0
-- ARGV[4] -> overage policy
-- ARGV[5..] -> the scopes, from the top
--
-- Returns {'ok', answer} or {'refused', code, scope or reason}. The answer is JSON.
--
-- What it tells of has happened already, so debt or a limit that was passed do not keep it from being booked.

-- @include clock
-- @include budgets
-- @include charges
-- @include idempotency

local replayed = idempotency.replay(KEYS[1], ARGV[1])
if replayed then
  return replayed
end
local scopes, keys = {}, {}
for i = 5, #ARGV do
  scopes[#scopes + 1] = ARGV[i]
  keys[#scopes] = KEYS[1 + #scopes]
end
local mentions, each, missing = budgets.read(keys, scopes)
if not mentions then
  return each
end
if #each == 0 then
  return {'refused', 'NO_BUDGET', scopes[#scopes]}
end
local refusal = budgets.closed_to_spending(each)
if refusal then
  return refusal
end
local charged, debt
refusal, charged, debt = charges.make(mentions, each, '0', ARGV[3], ARGV[4])
if refusal then
  return refusal
end

budgets.write(each)
return idempotency.record(KEYS[1], ARGV[1], {unit = ARGV[2], charged = charged, debt = debt, at = clock.now_text,
  balances = budgets.balances(each), missing = missing}, 0)
