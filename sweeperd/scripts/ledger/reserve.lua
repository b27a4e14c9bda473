-- Reserves an amount in the budgets of all scopes, or in none.
--
-- KEYS[1] -> reservation:res_<id>           HASH    the new reservation
-- KEYS[2] -> reservation:ttl                ZSET    bare id -> expires_at, ms on this server's clock
-- KEYS[3] -> idem:reserve:<tenant>:<key>    STRING  the answer recorded under this idempotency key
-- KEYS[4] -> tenant:<tenant>                STRING  the tenant's record, JSON; optional
-- KEYS[5] -> sweeperd:events                STREAM  gets an entry if a budget crosses a threshold
-- KEYS[6..] -> budget:<scope>:<unit>        HASH    one for each scope
-- Then, beside a Cycles service:
--   reservation:idx:<tenant>:created_at_ms      ZSET  bare id -> created_at, ms
--   reservation:idxmeta:<tenant>:created_at_ms  HASH  whether that index is complete
--   the records of the service for this key     STRING
-- ARGV[1] -> the hash of the request (without the id, because each attempt has a new id)
-- ARGV[2] -> the bare reservation id, used if this attempt reserves
-- ARGV[3] -> tenant;  ARGV[4] -> idempotency key
-- ARGV[5] -> the grace of a reservation without grace_ms, ms
-- ARGV[6] -> the prefix of a budget's name, before <scope>:<unit>
-- ARGV[7] -> unit;  ARGV[8] -> amount: a decimal int64, 0 or more;  ARGV[9] -> TTL, ms
-- ARGV[10] -> grace, ms; '' for a reservation without grace_ms (beside a Cycles service it gets ARGV[5])
-- ARGV[11] -> overage policy;  ARGV[12] -> how many times the reservation may be extended
-- ARGV[13], ARGV[14], ARGV[15] -> subject, action and metadata, each JSON or ''
-- ARGV[16..] -> the scopes, from the top
-- Returns {'ok', answer, ms to the deadline, hash} or {'refused', code, scope or reason, hash}. The answer is JSON.

-- @include answered
-- @include clock
-- @include amounts
-- @include budgets
-- @include cycles
-- @include idempotency
-- @include json
-- @include remaining
-- @include rights
-- @include tenants

local function run()
  local scopes = {unpack(ARGV, 16)}
  local replayed = idempotency.replay(KEYS[3], ARGV[1], {unpack(KEYS, 8 + #scopes)})
  if replayed then
    if replayed[1] == 'ok' then
      local answer = json.decode(replayed[2])
      local stem = string.sub(KEYS[1], 1, -1 - #ARGV[2])
      replayed[3] = remaining_ttl(stem .. answer.reservation_id, answer.expires_at)
    end
    return replayed
  end
  redis.call('ZCARD', KEYS[2]) -- fail before the first write if the key has the wrong type
  local refusal = tenants.refusal(KEYS[4])
  if refusal then
    return refusal
  end
  if redis.call('EXISTS', KEYS[1]) == 1 then
    return {'refused', 'RESERVATION_EXISTS', ''}
  end
  local ttl, grace = tonumber(ARGV[9]), tonumber(ARGV[10] == '' and ARGV[5] or ARGV[10])
  if not clock.reaches(clock.now, ttl, grace) then
    return {'refused', 'DEADLINE_TOO_FAR', ''}
  end

  local unit, amount = ARGV[7], ARGV[8]
  local index, metadata = KEYS[6 + #scopes], KEYS[7 + #scopes]
  local mentions, each, missing = budgets.named({unpack(KEYS, 6)}, scopes, unit, ARGV[6])
  if not mentions then
    return each
  end

  -- The refusal of a budget that may not reserve, else nil.
  local function check(budget)
    local closed = budgets.closed_to_spending(budget)
    if closed then
      return closed
    end
    if budget.over then
      return {'refused', 'OVER_LIMIT', budget.scope}
    end
    -- Debt is allowed up to an overdraft limit, so it is a reason to refuse only without one.
    if budget.debt ~= '0' and budget.overdraft_limit == '0' then
      return {'refused', 'DEBT_OUTSTANDING', budget.scope}
    end
    if amounts.less(budget.remaining, amount) then
      return {'refused', 'INSUFFICIENT_BUDGET', budget.scope}
    end
  end

  local budgeted = {}
  for i = 1, #mentions do
    local budget = mentions[i]
    refusal = check(budget) or budgets.add(budget, 'reserved', amount)
    if refusal then
      return refusal
    end
    budget.remaining = amounts.subtract(budget.remaining, amount)
    budgeted[i] = budget.scope
  end

  local expires_text = string.format('%d', clock.now + ttl)
  local row = {'reservation_id', ARGV[2], 'tenant', ARGV[3], 'state', 'ACTIVE', 'estimate_amount', amount,
    'estimate_unit', unit, 'scope_path', scopes[#scopes], 'affected_scopes', json.encode(scopes),
    'budgeted_scopes', json.encode(budgeted), 'created_at', clock.now_text, 'expires_at', expires_text,
    'extension_count', '0', 'max_extensions', ARGV[12], 'overage_policy', ARGV[11], 'idempotency_key', ARGV[4]}
  -- The service reads a missing grace_ms as a grace of 0.
  local grace_text = index and ARGV[10] == '' and ARGV[5] or ARGV[10]
  local optional = {grace_ms = grace_text, subject_json = ARGV[13], action_json = ARGV[14], metadata_json = ARGV[15]}
  for field, value in pairs(optional) do
    if value ~= '' then
      row[#row + 1], row[#row + 2] = field, value
    end
  end

  local announced
  refusal, announced = budgets.no_right(each, KEYS[5], clock.now_text, unit, 'reserve', ARGV[2], ARGV[3])
  refusal = refusal or no_right('HSET', KEYS[1]) or no_right('ZADD', KEYS[2])
  local indexing = index and cycles.indexing(index, metadata, ARGV[2]) or {}
  refusal = refusal or cycles.no_right(indexing)
  if refusal then
    return refusal
  end
  local reply, record = idempotency.prepare(KEYS[3], ARGV[1], {reservation_id = ARGV[2], unit = unit,
    created_at = clock.now_text, expires_at = expires_text, balances = budgets.balances(each), missing = missing},
    ttl + grace)
  if not reply then
    return record
  end
  reply[3] = ARGV[9]

  budgets.write(each, announced)
  redis.call('HSET', KEYS[1], unpack(row))
  redis.call('ZADD', KEYS[2], expires_text, ARGV[2])
  for i = 1, #indexing do
    redis.call(unpack(indexing[i]))
  end
  redis.call(unpack(record))
  return reply
end

return answered(run(), ARGV[1])
