-- Decides one index entry and acts on the decision, atomically. Every expiry is decided here, except that
-- ledger/settle.lua expires an overdue reservation in the same way.
--
-- KEYS[1] -> reservation:res_<id>  HASH    the reservation
-- KEYS[2] -> reservation:ttl       ZSET    bare id -> expires_at, ms on this server's clock
-- KEYS[3] -> sweeperd:events       STREAM  one entry for each expiry, and one if a budget crosses a threshold
-- KEYS[4] -> sweeperd:quarantine   ZSET    bare id -> ms when the reservation was quarantined
-- ARGV[1] -> the bare reservation id
-- ARGV[2] -> the prefix of a budget's name (a HASH), before <scope>:<unit>. The budgets are known only after the
--            reservation is read, so they cannot be KEYS; they share its key prefix, and so its slot.
-- ARGV[3] -> the grace of a reservation without grace_ms, ms
-- ARGV[4] -> how long the expired reservation stays readable, ms
-- ARGV[5] -> trace id for the event
-- ARGV[6] -> '1': the event has the field `balances`, JSON: scope -> remaining and reserved after the release
-- ARGV[7] -> '1': Redis is above sweep.memory_limit, so an expiry, which needs memory, is deferred
-- Further arguments are ignored. Now is this server's TIME, never a client's.
-- Returns {outcome, ...}:
--   {'not_found'}  {'not_due'}  {'skipped', state}  {'in_grace', ms when the grace ends}
--   {'deferred'}: past the grace, and unchanged. It is returned before the budgets are read, to spare a full server.
--   {'quarantined', reason, tenant}
--   {'expired', tenant, ms since deadline + grace, scopes without a budget, scopes with a closed budget (JSON arrays)}
-- If there is an error, nothing was written: the server is in trouble, or the user lacks a right (NOPERM).
--
-- Redis doesn't roll a script back, so every check comes before the first write, and nothing may fail after it. If a
-- script released scope 1 and then failed on scope 2, every sweep would release scope 1 again.
--
-- An open connection can lose a right, so each right is checked before the first write (`denied`), as in rights.lua;
-- ZREM checks its own. On 6.2 XADD is its own trial, after the right to undo the ZREM is confirmed. The first write is
-- always a ZREM, after which Redis at maxmemory accepts the others.
--
-- This script runs once for each expiry and blocks all other clients, so it is written for few commands and few
-- allocations. Text is formatted with %d, because redis.call would print a number with 17 digits of floating point, at
-- several times the cost.

-- @include clock
-- @include deadline
-- @include expiry_event
-- @include permission
-- @include whole

local PLAIN, PLAIN_DIGITS = whole.UNSIGNED, whole.EXACT_DIGITS
local MAX_SCOPES = 256
local call, attempt, find, format = redis.call, redis.pcall, string.find, string.format

-- The error if the user may not run this command on this key, else nil. Redis 6.2 has no way to ask, so there the
-- command is tried in a form that fails at an argument. If the trial meets another error, ZREM meets or clears it too.
local function denied(command, key)
  if can_ask then
    return lacks_permission(command, key, '', '', '') -- XADD takes the most arguments
  end
  local problem
  if command == 'PEXPIRE' then
    problem = attempt(command, key, '\0sweeperd check').err
  else
    problem = attempt(command, key, '\0sweeperd check', '', '').err
  end
  problem = tostring(problem) -- a Redis imitation may return the error as another type
  if find(problem, '^ERR ')
    or not (find(problem, 'user executing', 1, true) or find(problem, 'Unknown Redis command', 1, true)) then
    return nil
  end
  return permission_error(command, key)
end

local function set_aside(reason, now, tenant)
  local refusal = reason ~= 'WRONG_TYPE' and denied('HSET', KEYS[1]) or denied('ZADD', KEYS[4])
  if refusal then
    return refusal
  end
  call('ZCARD', KEYS[4]) -- fail before the first write if the key has the wrong type
  call('ZREM', KEYS[2], ARGV[1])
  call('ZADD', KEYS[4], now, ARGV[1])
  if reason ~= 'WRONG_TYPE' then
    call('HSET', KEYS[1], 'quarantined_at', now, 'quarantine_reason', reason)
  end
  return {'quarantined', reason, tenant or ''}
end

-- What everyday numbers do not need; loaded when first needed.
local exact
local function exactly()
  if exact then
    return exact
  end
  -- @include amounts
  -- @include thresholds
  exact = {announcement = thresholds.event}

  -- Moves amount from reserved to remaining. Returns both as text, or a third value: the reason why it cannot be moved.
  function exact.move(reserved, remaining, amount)
    if not amounts.is_int64(reserved) or not amounts.is_int64(remaining) then
      return nil, nil, 'INVALID_BUDGET'
    end
    reserved, remaining = amounts.subtract(reserved, amount), amounts.add(remaining, amount)
    if not reserved or amounts.less(reserved, '0') then
      return nil, nil, 'RESERVED_UNDERFLOW'
    elseif not remaining then
      return nil, nil, 'BUDGET_OVERFLOW'
    end
    return reserved, remaining
  end
  return exact
end

local now, now_text = clock.now, clock.now_text

local row = attempt('HMGET', KEYS[1], 'state', 'expires_at', 'grace_ms', 'estimate_amount', 'estimate_unit',
  'budgeted_scopes', 'tenant', 'scope_path', 'created_at', 'extension_count')
if not row[1] and row.err then
  if find(row.err, 'WRONGTYPE', 1, true) then
    return set_aside('WRONG_TYPE', now_text)
  end
  return row
end
local state, expires_text, amount, unit, scopes_text, tenant = row[1], row[2], row[4], row[5], row[6], row[7]

if state ~= 'ACTIVE' then
  if state == 'COMMITTED' or state == 'RELEASED' or state == 'EXPIRED' then
    call('ZREM', KEYS[2], ARGV[1])
    return {'skipped', state}
  end
  if not state and call('EXISTS', KEYS[1]) == 0 then
    call('ZREM', KEYS[2], ARGV[1])
    return {'not_found'}
  end
  return set_aside('INVALID_STATE', now_text, tenant)
end

local grace_text = row[3] or ARGV[3]
local phase, expires_at, grace = deadline_phase(expires_text, grace_text)
if not phase then
  return set_aside('INVALID_EXPIRY', now_text, tenant)
end
if phase == 'not_due' then
  local refusal = denied('ZADD', KEYS[2])
  if refusal then
    return refusal
  end
  call('ZREM', KEYS[2], ARGV[1])
  call('ZADD', KEYS[2], expires_text, ARGV[1])
  return {'not_due'}
end
if phase == 'in_grace' then
  return {'in_grace', expires_at + grace}
end
if ARGV[7] == '1' then
  return {'deferred'}
end

if not whole.is_amount(amount) or not unit or unit == '' then
  return set_aside('INVALID_ESTIMATE', now_text, tenant)
end

if not scopes_text then
  scopes_text = call('HGET', KEYS[1], 'affected_scopes')
  if not scopes_text then
    return set_aside('MISSING_SCOPES', now_text, tenant)
  end
end
-- @include json

-- The decoder silently stops at a NUL byte. An object has length 0.
local decoded, scopes = pcall(json.decode, scopes_text)
if not decoded or type(scopes) ~= 'table' or #scopes == 0 or find(scopes_text, '\0', 1, true) then
  return set_aside('MALFORMED_SCOPES', now_text, tenant)
end
if #scopes > MAX_SCOPES then
  return set_aside('TOO_MANY_SCOPES', now_text, tenant)
end
local refusal = denied('PEXPIRE', KEYS[1]) or denied('HSET', KEYS[1]) or denied('ZADD', KEYS[2])
  or can_ask and denied('XADD', KEYS[3])
if refusal then
  return refusal
end
local small_amount = #amount <= PLAIN_DIGITS and amount + 0
local budgets = {} -- key -> {reserved, remaining} after the writes; false if the budget is missing or closed
local missing, closed, watched
local stem, suffix = ARGV[2], ':' .. unit
-- Replaces each scope by the name of its budget.
for i = 1, #scopes do
  local scope = scopes[i]
  if type(scope) ~= 'string' or scope == '' then
    return set_aside('MALFORMED_SCOPES', now_text, tenant)
  end
  local key = stem .. scope .. suffix
  scopes[i] = key
  local budget = budgets[key] -- a scope that is named twice is released twice
  if budget == nil then
    -- A field costs 1 % of an expiry, so the status is read only if it decides.
    budget = attempt('HMGET', key, 'reserved', 'remaining', 'thresholds')
    if not budget[1] and budget.err then
      if find(budget.err, 'WRONGTYPE', 1, true) then
        return set_aside('INVALID_BUDGET', now_text, tenant)
      end
      return budget
    end
    if not budget[1] and not budget[2] and call('EXISTS', key) == 0 then
      budget = false
      missing = missing or {}
      missing[#missing + 1] = scope
    elseif can_ask then -- on 6.2 a readable hash is also writable
      refusal = denied('HSET', key)
      if refusal then
        return refusal
      end
    end
    budgets[key] = budget
    if budget and budget[3] then
      watched = watched or {}
      watched[#watched + 1] = {key = key, scope = scope, before = budget[2], thresholds = budget[3]}
    end
  end
  if budget then
    local reserved, remaining = budget[1], budget[2]
    if not reserved or not remaining then
      return set_aside('INVALID_BUDGET', now_text, tenant)
    end
    local problem
    if small_amount and #reserved <= PLAIN_DIGITS and #remaining <= PLAIN_DIGITS
      and find(reserved, PLAIN) and (find(remaining, PLAIN) or remaining == '0') then
      reserved = reserved - small_amount
      if reserved < 0 then
        problem = 'RESERVED_UNDERFLOW'
      else
        budget[1], budget[2] = format('%d', reserved), format('%d', remaining + small_amount)
      end
    else
      budget[1], budget[2], problem = exactly().move(reserved, remaining, amount)
    end
    if problem == 'RESERVED_UNDERFLOW' and call('HGET', key, 'status') == 'CLOSED' then
      -- Closing the budget released its reserved amounts: it is already settled, and stays unchanged.
      budgets[key] = false
      closed = closed or {}
      closed[#closed + 1] = scope
    elseif problem then
      return set_aside(problem, now_text, tenant)
    end
  end
end
local missing_text = missing and json.encode(missing) or '[]'
local closed_text = closed and json.encode(closed) or '[]'
local more = {}
if ARGV[6] == '1' then
  -- Numbers are inserted as decimal text, because a double would round them.
  local parts, seen = {}, {}
  for i = 1, #scopes do
    local key = scopes[i]
    local budget = budgets[key]
    if budget and not seen[key] then
      seen[key] = true
      parts[#parts + 1] = json.encode(string.sub(key, #stem + 1, -1 - #suffix)) .. ':{"remaining":' .. budget[2]
        .. ',"reserved":' .. budget[1] .. '}'
    end
  end
  more = {'balances', '{' .. table.concat(parts, ',') .. '}'}
end

local announced
if watched then
  -- @include stream_room
  for i = 1, #watched do
    local each = watched[i]
    local budget = budgets[each.key]
    each.allocated, each.remaining = budget and call('HGET', each.key, 'allocated'), budget and budget[2] or each.before
  end
  announced = exactly().announcement(KEYS[3], watched, now_text, unit, 'expire', ARGV[1], tenant or '', ARGV[5])
  refusal = announced and no_room(KEYS[3], 2)
  if refusal then
    return refusal
  end
end

local added, problem = add_expiry(KEYS[2], KEYS[3], ARGV[1], tenant, row[8], unit, amount, row[9], expires_text,
  grace_text, row[10], missing_text, closed_text, ARGV[5], unpack(more))
if problem then
  return problem
end
if announced then
  call(unpack(announced))
end
for i = 1, #scopes do
  local key = scopes[i]
  local budget = budgets[key]
  if budget then
    call('HSET', key, 'reserved', budget[1], 'remaining', budget[2])
  end
end
call('HSET', KEYS[1], 'state', 'EXPIRED', 'expired_at', now_text, 'expired_event', added)
call('PEXPIRE', KEYS[1], ARGV[4])
return {'expired', tenant or '', now - expires_at - grace, missing_text, closed_text}
