-- Charges the amount used, whatever the state of the reservation, and once, however often the request arrives.
--
-- KEYS[1..5], ARGV[1..7] -> those of reservations.lua; the record is named as an event's, so that only one of
--                           the two charges
-- KEYS[6] -> idem:<tenant>:event:<key>  STRING  beside a Cycles service: the record of the service
-- ARGV[8] -> the amount used: a decimal int64, 0 or more
-- ARGV[9] -> trace id for the event of an expiry
-- Returns {'ok', answer, hash} or {'refused', code, scope or reason, hash}. The answer is JSON.
--
-- In time, this is a commit. If the reservation is overdue but not yet swept, the script expires it as expire.lua does,
-- with its event, and charges the amount as event.lua does, in the same step. If the reservation has already expired,
-- the script only charges the amount. In these late cases the reservation's overage policy decides what is charged, and
-- an amount of 0 is always accepted. The answer is stored in the hash: the same request gets it until the hash expires,
-- and is refused afterwards.

-- @include answered
-- @include clock
-- @include budgets
-- @include charges
-- @include expiry_event
-- @include json
-- @include reservations
-- @include rights
-- @include stream_room

local function run()
  local row = redis.pcall('HMGET', KEYS[1], 'tenant', 'settled_idempotency_key', 'settled_payload_hash',
    'settled_answer', 'scope_path', 'created_at', 'expires_at', 'grace_ms', 'extension_count')
  if not row.err and row[1] == ARGV[3] and row[2] then
    if row[2] ~= ARGV[4] then
      return {'refused', 'RESERVATION_FINALIZED', 'SETTLED'}
    end
    if row[3] ~= ARGV[1] or not row[4] then
      return {'refused', 'IDEMPOTENCY_MISMATCH', ''}
    end
    return {'ok', row[4]}
  end
  local request = reservations.request('settle', KEYS, ARGV)
  local reservation, reply = reservations.open(request, 'expired')
  if not reservation then
    return reply
  end

  local each, phase = reservation.each, reservation.phase
  local overdue = phase == 'overdue'
  local late = overdue or phase == 'expired'
  local refusal, charged, debt
  if late and ARGV[8] == '0' then -- needs no funds, as a commit of 0
    charged, debt = '0', '0'
    refusal = overdue and budgets.settle(each, reservation.amount, reservation.amount)
  elseif late then
    if #each == 0 then
      return {'refused', 'NO_BUDGET', reservation.scopes[#reservation.scopes]}
    end
    if not charges.POLICIES[reservation.overage_policy] then
      return {'refused', 'INVALID_RESERVATION', 'INVALID_POLICY'}
    end
    refusal = overdue and budgets.settle(each, reservation.amount, reservation.amount)
    if not refusal then
      refusal, charged, debt = charges.debit(reservation.mentions, each, ARGV[8], reservation.overage_policy)
    end
  else
    refusal, charged, debt = charges.commit(reservation, ARGV[8])
  end
  if refusal then
    return refusal
  end

  -- The right to the first write is checked first. If that is a ZREM, Redis at maxmemory accepts all writes of the
  -- script; if HSET, none.
  refusal = overdue and no_right('ZREM', KEYS[2]) or no_right('HSET', KEYS[1])
  if refusal then
    return refusal
  end
  local announced
  refusal, announced = budgets.no_right(each, KEYS[5], clock.now_text, reservation.unit, 'settle', ARGV[2], ARGV[3],
    ARGV[9])
  if phase ~= 'expired' then
    refusal = refusal or no_right('ZREM', KEYS[2]) or no_right('PEXPIRE', KEYS[1])
  end
  if overdue then
    refusal = refusal or no_right('ZADD', KEYS[2]) or no_right('XADD', KEYS[5])
      or announced and no_room(KEYS[5], 2)
  end
  if refusal then
    return refusal
  end
  local record
  reply, record = reservations.prepare(request, reservation, {charged = charged, debt = debt, at = clock.now_text,
    late = late})
  if not reply then
    return record
  end
  local missing = reservation.missing
  local missing_text = #missing > 0 and json.encode(missing) or '[]'
  local settled = {'HSET', KEYS[1], 'settled_at', clock.now_text, 'settled_amount', charged, 'settled_debt', debt,
    'settled_idempotency_key', ARGV[4], 'settled_payload_hash', ARGV[1], 'settled_answer', reply[2]}

  local event
  if overdue then
    local closed = {}
    for i = 1, #each do
      if not each[i].held then
        closed[#closed + 1] = each[i].scope
      end
    end
    local closed_text = #closed > 0 and json.encode(closed) or '[]'
    event, refusal = add_expiry(KEYS[2], KEYS[5], ARGV[2], ARGV[3], row[5], reservation.unit, reservation.amount,
      row[6], row[7], row[8] or ARGV[6], row[9], missing_text, closed_text, ARGV[9])
    if refusal then
      return refusal
    end
  end
  budgets.write(each, announced)
  redis.call(unpack(settled))
  if overdue then
    redis.call('HSET', KEYS[1], 'state', 'EXPIRED', 'expired_at', clock.now_text, 'expired_event', event)
  elseif not late then
    redis.call('HSET', KEYS[1], 'state', 'COMMITTED', 'charged_amount', charged, 'debt_incurred', debt,
      'committed_at', clock.now_text, 'committed_idempotency_key', ARGV[4], 'committed_payload_hash', ARGV[1])
    redis.call('ZREM', KEYS[2], ARGV[2])
  end
  if phase ~= 'expired' then
    redis.call('PEXPIRE', KEYS[1], ARGV[7])
  end
  redis.call(unpack(record))
  return reply
end

return answered(run(), ARGV[1])
