-- Debits an amount without a reservation, in every budget of the scopes or in none.
--
-- KEYS[1] -> idem:event:<tenant>:<key>    STRING  the answer recorded under this idempotency key
-- KEYS[2] -> tenant:<tenant>              STRING  the tenant's record, JSON; optional
-- KEYS[3] -> sweeperd:events              STREAM  gets an entry if a budget crosses a threshold
-- KEYS[4..] -> budget:<scope>:<unit>      HASH    one for each scope
-- Then, beside a Cycles service: idem:<tenant>:event:<key>, STRING, the record of the service
-- ARGV[1] -> the hash of the request
-- ARGV[2] -> the prefix of a budget's name, before <scope>:<unit>
-- ARGV[3] -> unit;  ARGV[4] -> amount: a decimal int64, 0 or more;  ARGV[5] -> overage policy
-- ARGV[6] -> the requesting tenant;  ARGV[7] -> the idempotency key
-- ARGV[8..] -> the scopes, from the top
-- Returns {'ok', answer, hash} or {'refused', code, scope or reason, hash}. The answer is JSON.
--
-- The amount is already used, so it is debited even if a budget is in debt or over its limit.

-- @include answered
-- @include clock
-- @include budgets
-- @include charges
-- @include idempotency
-- @include tenants

local function run()
  local scopes = {unpack(ARGV, 8)}
  local replayed = idempotency.replay(KEYS[1], ARGV[1], {unpack(KEYS, 4 + #scopes)})
  if replayed then
    return replayed
  end
  local refusal = tenants.refusal(KEYS[2])
  if refusal then
    return refusal
  end
  local unit = ARGV[3]
  local mentions, each, missing = budgets.named({unpack(KEYS, 4)}, scopes, unit, ARGV[2])
  if not mentions then
    return each
  end
  local charged, debt, announced
  refusal, charged, debt = charges.debit(mentions, each, ARGV[4], ARGV[5])
  if refusal then
    return refusal
  end

  refusal, announced = budgets.no_right(each, KEYS[3], clock.now_text, unit, 'event', ARGV[7], ARGV[6])
  if refusal then
    return refusal
  end
  local reply, record = idempotency.prepare(KEYS[1], ARGV[1], {unit = unit, charged = charged, debt = debt,
    at = clock.now_text, balances = budgets.balances(each), missing = missing}, 0)
  if not reply then
    return record
  end

  budgets.write(each, announced)
  redis.call(unpack(record))
  return reply
end

return answered(run(), ARGV[1])
