-- A reservation for commit, release, extend and settle: found, checked, ended, and the answer recorded.
--
-- Every function takes the request, a table:
--   key             reservation:res_<id>      HASH    the reservation
--   index           reservation:ttl           ZSET    bare id -> expires_at, ms on this server's clock
--   record          idem:<op>:<tenant>:<key>  STRING  the answer given under this idempotency key
--   hash            the hash of the request
--   id              the bare reservation id
--   tenant          the tenant who asks
--   tenant_record   tenant:<tenant>           STRING  JSON; there may be none
--   budget_stem     the start of a budget's name, before <scope>:<unit>
--   default_grace   grace in ms if the reservation has no grace_ms
--   retention       how long an ended reservation stays readable, ms
--   others          the records of a Cycles service for the same idempotency key, if any

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

  -- The request of a script with these keys and arguments, in the order of the list above: the keys are the
  -- reservation, the index, the record, the tenant's record, and the records of a Cycles service.
  function reservations.request(keys, arguments)
    return {key = keys[1], index = keys[2], record = keys[3], tenant_record = keys[4], hash = arguments[1],
      id = arguments[2], tenant = arguments[3], budget_stem = arguments[5], default_grace = arguments[6],
      retention = arguments[7], others = {unpack(keys, 5)}}
  end

  local function invalid(reason)
    return nil, {'refused', 'INVALID_RESERVATION', reason}
  end

  -- The tenant's reservation if it can still be changed: up to the deadline if latest is 'not_due'; up to the end of
  -- the grace if 'in_grace', both included; if 'expired', later too, and when it has expired. When now > expires_at +
  -- grace, the sweep may expire the reservation, so from then on it counts as expired, even if the sweep has not come
  -- by.
  local function read(request, latest)
    local row = redis.pcall('HMGET', request.key, 'state', 'tenant', 'expires_at', 'grace_ms', 'estimate_amount',
      'estimate_unit', 'budgeted_scopes', 'affected_scopes', 'created_at', 'overage_policy', 'extension_count',
      'max_extensions', 'idempotency_key')
    if row.err then
      if string.find(row.err, 'WRONGTYPE', 1, true) then
        return invalid('WRONG_TYPE')
      end
      return nil, row
    end
    local state, amount, unit = row[1], row[5], row[6]
    -- For this tenant, a reservation of another tenant does not exist.
    if row[2] ~= request.tenant then
      return nil, {'refused', 'RESERVATION_NOT_FOUND', ''}
    end
    local closed = tenants.refusal(request.tenant_record)
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
    local phase, expires_at, grace = deadline_phase(row[3], row[4] or request.default_grace)
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

  -- The common beginning of all four: the reservation, the budgets as budgets.read returns them, and the checks of the
  -- coming writes. Nil and the reply if a check fails.
  function reservations.open(request, latest)
    local replayed = idempotency.replay(request.record, request.hash, request.others)
    if replayed then
      return nil, replayed
    end
    redis.call('ZCARD', request.index) -- fail here, if the key is of another type, before the first write
    local reservation, problem = read(request, latest)
    if problem then
      return nil, problem
    end
    local keys = {}
    for i = 1, #reservation.scopes do
      keys[i] = request.budget_stem .. reservation.scopes[i] .. ':' .. reservation.unit
    end
    local mentions, each, missing = budgets.read(keys, reservation.scopes)
    if not mentions then
      return nil, each
    end
    reservation.mentions, reservation.each, reservation.missing = mentions, each, missing
    return reservation
  end

  -- The reply, and the words of the SET: the answer is recorded for as long as the reservation was to live. Nil and the
  -- error if the user has no right to SET.
  function reservations.prepare(request, reservation, answer)
    answer.unit = reservation.unit
    answer.balances = budgets.balances(reservation.each)
    answer.missing = reservation.missing
    local lifetime = reservation.expires_at + reservation.grace - reservation.created_at
    return idempotency.prepare(request.record, request.hash, answer, lifetime)
  end

  -- Ends the reservation: the budgets are written, these fields are set, the index entry goes, the hash stays for an
  -- audit, and the answer is recorded. All or nothing. Returns the reply.
  function reservations.finish(request, reservation, answer, ...)
    -- HSET first, as in the writes: if Redis is full, HSET is refused.
    local refusal = no_right('HSET', request.key) or budgets.no_right(reservation.each)
      or no_right('ZREM', request.index) or no_right('PEXPIRE', request.key)
    if refusal then
      return refusal
    end
    local reply, record = reservations.prepare(request, reservation, answer)
    if not reply then
      return record
    end

    budgets.write(reservation.each)
    redis.call('HSET', request.key, ...)
    redis.call('ZREM', request.index, request.id)
    redis.call('PEXPIRE', request.key, request.retention)
    redis.call(unpack(record))
    return reply
  end
end
