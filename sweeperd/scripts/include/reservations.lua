-- Reservations for commit, release, extend and settle: finds, checks and ends one, and records the answer.
--
-- Every function takes the request, a table of the keys and arguments that the four scripts share, in their order:
--   key             reservation:res_<id>      HASH    the reservation
--   index           reservation:ttl           ZSET    bare id -> expires_at, ms on this server's clock
--   record          idem:<op>:<tenant>:<key>  STRING  the answer recorded under this idempotency key
--   tenant_record   tenant:<tenant>           STRING  JSON; optional
--   stream          sweeperd:events           STREAM  one entry for each expiry and each crossed threshold
--   others          a Cycles service's records for the same idempotency key, if any
--   hash            the hash of the request
--   id              the bare reservation id
--   tenant          the requesting tenant; the next argument is the idempotency key
--   budget_stem     the prefix of a budget's name (a HASH), before <scope>:<unit>. The budgets are known only after the
--                   reservation is read, so they cannot be keys; they share its key prefix, and so its slot
--   default_grace   the grace of a reservation without grace_ms, ms
--   retention       how long an ended reservation stays readable, ms
--   operation       commit, release, extend or settle

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

  function reservations.request(operation, keys, arguments)
    return {key = keys[1], index = keys[2], record = keys[3], tenant_record = keys[4], stream = keys[5],
      others = {unpack(keys, 6)}, hash = arguments[1], id = arguments[2], tenant = arguments[3],
      budget_stem = arguments[5], default_grace = arguments[6], retention = arguments[7], operation = operation}
  end

  local function invalid(reason)
    return nil, {'refused', 'INVALID_RESERVATION', reason}
  end

  -- The tenant's reservation while it can be changed: until the deadline if latest is 'not_due', until the end of the
  -- grace if 'in_grace', both inclusive; at any time, even when it has expired, if 'expired'. Once now > expires_at +
  -- grace, the sweep may expire the reservation, so it counts as expired even before the sweep reaches it.
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
    -- To this tenant, another tenant's reservation doesn't exist.
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

  -- The common start of all four: the reservation, its budgets as from budgets.read, and the checks of the later
  -- writes. Nil and the reply if a check fails.
  function reservations.open(request, latest)
    local replayed = idempotency.replay(request.record, request.hash, request.others)
    if replayed then
      return nil, replayed
    end
    redis.call('ZCARD', request.index) -- fail before the first write if the key has the wrong type
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

  -- The reply, and the words of the SET that records the answer for the planned lifetime of the reservation. Nil and
  -- the error if the user lacks the right to SET.
  function reservations.prepare(request, reservation, answer)
    answer.unit = reservation.unit
    answer.balances = budgets.balances(reservation.each)
    answer.missing = reservation.missing
    local lifetime = reservation.expires_at + reservation.grace - reservation.created_at
    return idempotency.prepare(request.record, request.hash, answer, lifetime)
  end

  -- Ends the reservation: writes the budgets, sets these fields, removes the index entry, keeps the hash for an audit,
  -- and records the answer. All or nothing. Returns the reply.
  function reservations.finish(request, reservation, answer, ...)
    -- HSET first, as in the writes: at maxmemory Redis refuses it.
    local refusal, announced = budgets.no_right(reservation.each, request.stream, clock.now_text, reservation.unit,
      request.operation, request.id, request.tenant)
    refusal = refusal or no_right('HSET', request.key) or no_right('ZREM', request.index)
      or no_right('PEXPIRE', request.key)
    if refusal then
      return refusal
    end
    local reply, record = reservations.prepare(request, reservation, answer)
    if not reply then
      return record
    end

    budgets.write(reservation.each, announced)
    redis.call('HSET', request.key, ...)
    redis.call('ZREM', request.index, request.id)
    redis.call('PEXPIRE', request.key, request.retention)
    redis.call(unpack(record))
    return reply
  end
end
