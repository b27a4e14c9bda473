-- Reservations for commit, release, extend and settle: finds, checks and ends one, and records the answer.
--
-- The common keys and arguments of the four scripts:
--
-- KEYS[1] -> reservation:res_<id>      HASH    the reservation
-- KEYS[2] -> reservation:ttl           ZSET    bare id -> expires_at, ms on this server's clock
-- KEYS[3] -> idem:<op>:<tenant>:<key>  STRING  the answer recorded under this idempotency key
-- KEYS[4] -> tenant:<tenant>           STRING  the tenant's record, JSON; optional
-- KEYS[5] -> sweeperd:events           STREAM  gets an entry if a budget crosses a threshold, and for each expiry
-- KEYS[6..] -> a Cycles service's records for the same idempotency key, if any
--
-- ARGV[1] -> the hash of the request
-- ARGV[2] -> the bare reservation id
-- ARGV[3] -> the requesting tenant
-- ARGV[4] -> the idempotency key
-- ARGV[5] -> the prefix of a budget's name (a HASH), before <scope>:<unit>. The budgets are known only after the
--            reservation is read, so they cannot be KEYS; they share its key prefix, and so its slot.
-- ARGV[6] -> the grace of a reservation without grace_ms, ms
-- ARGV[7] -> how long an ended reservation stays readable, ms

-- @include clock
-- @include deadline
-- @include budgets
-- @include idempotency
-- @include rights
-- @include scopes
-- @include tenants
-- @include whole

local reservations = {}
do
  local MAX_SCOPES = 256

  local function invalid(reason)
    return nil, {'refused', 'INVALID_RESERVATION', reason}
  end

  -- The tenant's reservation while it can be changed: until the deadline if latest is 'not_due', until the end of the
  -- grace if 'in_grace', both inclusive; at any time, even when it has expired, if 'expired'. Once now > expires_at +
  -- grace, the sweep may expire the reservation, so it counts as expired even before the sweep reaches it.
  local function read(latest)
    local row = redis.pcall('HMGET', KEYS[1], 'state', 'tenant', 'expires_at', 'grace_ms', 'estimate_amount',
      'estimate_unit', 'budgeted_scopes', 'affected_scopes', 'created_at', 'overage_policy', 'extension_count',
      'max_extensions', 'idempotency_key')
    if row.err then
      if string.find(row.err, 'WRONGTYPE', 1, true) then
        return invalid('WRONG_TYPE')
      end
      return nil, row
    end
    local state, amount, unit = row[1], row[5], row[6]
    -- To this tenant, another tenant's reservation doesn't exist.
    if row[2] ~= ARGV[3] then
      return nil, {'refused', 'RESERVATION_NOT_FOUND', ''}
    end
    local closed = tenants.refusal(KEYS[4])
    if closed then
      return nil, closed
    end
    if state == 'COMMITTED' or state == 'RELEASED' then
      return nil, {'refused', 'RESERVATION_FINALIZED', state}
    end
    if state == 'EXPIRED' and latest ~= 'expired' then
      return nil, {'refused', 'RESERVATION_EXPIRED', ''}
    end
    if state ~= 'ACTIVE' and state ~= 'EXPIRED' then
      return invalid('INVALID_STATE')
    end
    local phase, expires_at, grace = deadline_phase(row[3], row[4] or ARGV[6])
    if not phase then
      return invalid('INVALID_EXPIRY')
    end
    if latest ~= 'expired' and (phase == 'overdue' or (phase == 'in_grace' and latest ~= 'in_grace')) then
      return nil, {'refused', 'RESERVATION_EXPIRED', ''}
    end
    if not whole.is_amount(amount) or not unit or unit == '' then
      return invalid('INVALID_ESTIMATE')
    end
    local scopes_text = row[7] or row[8]
    if not scopes_text then
      return invalid('MISSING_SCOPES')
    end
    local scopes = scopes_parse(scopes_text)
    if not scopes then
      return invalid('MALFORMED_SCOPES')
    end
    if #scopes > MAX_SCOPES then
      return invalid('TOO_MANY_SCOPES')
    end
    phase = state == 'EXPIRED' and 'expired' or phase
    return {phase = phase, expires_at = expires_at, grace = grace, amount = amount, unit = unit, scopes = scopes,
      created_at = clock.whole(row[9]) or clock.now, overage_policy = row[10], extension_count = row[11],
      max_extensions = row[12], idempotency_key = row[13]}
  end

  -- The common start of all four: the reservation, its budgets as from budgets.read, and the checks of the later
  -- writes. Nil and the reply if a check fails.
  function reservations.open(latest)
    local replayed = idempotency.replay(KEYS[3], ARGV[1], {unpack(KEYS, 6)})
    if replayed then
      return nil, replayed
    end
    redis.call('ZCARD', KEYS[2]) -- fail before the first write if the key has the wrong type
    local reservation, problem = read(latest)
    if problem then
      return nil, problem
    end
    local keys = {}
    for i = 1, #reservation.scopes do
      keys[i] = ARGV[5] .. reservation.scopes[i] .. ':' .. reservation.unit
    end
    local mentions, each, missing = budgets.read(keys, reservation.scopes)
    if not mentions then
      return nil, each
    end
    reservation.mentions, reservation.each, reservation.missing = mentions, each, missing
    return reservation
  end

  -- The reply, and the words of the SET that records the answer for the planned lifetime of the reservation. Nil and
  -- the error if the user lacks the right to SET.
  function reservations.prepare(reservation, answer)
    answer.unit = reservation.unit
    answer.balances = budgets.balances(reservation.each)
    answer.missing = reservation.missing
    local lifetime = reservation.expires_at + reservation.grace - reservation.created_at
    return idempotency.prepare(KEYS[3], ARGV[1], answer, lifetime)
  end

  -- Ends the reservation: writes the budgets, sets these fields, removes the index entry, keeps the hash for an audit,
  -- and records the answer. All or nothing. Returns the reply.
  function reservations.finish(operation, reservation, answer, ...)
    -- HSET first, as in the writes: at maxmemory Redis refuses it.
    local refusal, announced = budgets.no_right(reservation.each, KEYS[5], clock.now_text, reservation.unit, operation,
      ARGV[2], ARGV[3])
    refusal = refusal or no_right('HSET', KEYS[1]) or no_right('ZREM', KEYS[2]) or no_right('PEXPIRE', KEYS[1])
    if refusal then
      return refusal
    end
    local reply, record = reservations.prepare(reservation, answer)
    if not reply then
      return record
    end

    budgets.write(reservation.each, announced)
    redis.call('HSET', KEYS[1], ...)
    redis.call('ZREM', KEYS[2], ARGV[2])
    redis.call('PEXPIRE', KEYS[1], ARGV[7])
    redis.call(unpack(record))
    return reply
  end
end
