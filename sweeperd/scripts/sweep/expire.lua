-- Decides one index entry and acts on the decision, atomically. The only place where an expiry is decided, but for
-- ledger/settle.lua, which expires an overdue reservation in the same way.
--
-- KEYS[1] -> reservation:res_<id>  HASH    the reservation
-- KEYS[2] -> reservation:ttl       ZSET    bare id -> expires_at, ms on this server's clock
-- KEYS[3] -> sweeperd:events       STREAM  one entry for each expiry
-- KEYS[4] -> sweeperd:quarantine   ZSET    bare id -> ms when the reservation was set aside
--
-- ARGV[1] -> the bare reservation id
-- ARGV[2] -> the start of a budget's name (a HASH), before <scope>:<unit>. The budgets are known only when the
--            reservation has been read, so they cannot be KEYS; they share the reservation's prefix, and so the slot.
-- ARGV[3] -> grace in ms if the reservation has no grace_ms
-- ARGV[4] -> how long the expired reservation stays readable, ms
-- ARGV[5] -> trace id for the event
-- ARGV[6] -> '1': the event has the field `balances`, JSON: scope -> remaining and reserved after the release
-- Anything more is ignored, a client's idea of the time above all: now is this server's TIME.
--
-- Returns {outcome, ...}:
--   {'not_found'}  {'not_due'}
--   {'in_grace', ms when the grace ends}
--   {'skipped', state}
--   {'quarantined', reason, tenant}
--   {'expired', tenant, ms since deadline + grace, scopes without a budget, scopes with a closed budget}
--     the last two are JSON arrays
-- If there is an error, nothing was written: the server is in trouble, or the user lacks a right (NOPERM).
--
-- Redis does not roll a script back, so every check comes before the first write, and after it nothing may fail: if a
-- script gave back scope 1 and then stumbled over scope 2, every sweep would give back scope 1 again.
--
-- A right may be taken away on an open connection, so each is asked for before the first write (`denied`); the ZREM
-- asks for itself. In 6.2 an ACL grants no key for reading only, so a readable hash is also writable, and a trial of
-- each command suffices; XADD is tried by itself there, when the right to undo the ZREM is known.
--
-- The first write is always a ZREM. If Redis is at maxmemory with noeviction, it refuses the writes of a script that
-- need memory until the script has made a write that needs none.
--
-- This runs once for each expiry while all other clients wait, so it is written for few commands and few allocations:
-- no helper is defined unless everyday numbers need the helper, functions called often are locals, text is formatted
-- with %d (redis.call would print a number with 17 digits of floating point, at several times the cost), and used
-- tables are used again.

-- @include clock
-- @include deadline
-- @include expiry_event
-- @include whole

local PLAIN, PLAIN_DIGITS = whole.UNSIGNED, whole.EXACT_DIGITS
local MAX_SCOPES = 256
local call, attempt, find, format = redis.call, redis.pcall, string.find, string.format
local permitted = redis.acl_check_cmd

-- The error if the user has no right to run this command on this key; else nil. Redis 6.2 cannot be asked. There the
-- command is tried in a form that fails at an argument; if a trial meets another error, the ZREM meets or lifts it too.
local function denied(command, key)
  if permitted then
    if permitted(command, key, '', '', '') then -- XADD takes most arguments; fewer are an error on newer servers
      return nil
    end
  else
    local problem
    if command == 'PEXPIRE' then
      problem = attempt(command, key, '\0sweeperd check').err
    else
      problem = attempt(command, key, '\0sweeperd check', '', '').err
    end
    problem = tostring(problem) -- an imitation of Redis may give the error as another type
    if find(problem, '^ERR ')
      or not (find(problem, 'user executing', 1, true) or find(problem, 'Unknown Redis command', 1, true)) then
      return nil
    end
  end
  return {err = 'NOPERM the user has no right to run ' .. command .. ' on ' .. key}
end

local function set_aside(reason, now, tenant)
  local refusal = reason ~= 'WRONG_TYPE' and denied('HSET', KEYS[1]) or denied('ZADD', KEYS[4])
  if refusal then
    return refusal
  end
  call('ZCARD', KEYS[4]) -- fail here, if the key is of another type, before the first write
  call('ZREM', KEYS[2], ARGV[1])
  call('ZADD', KEYS[4], now, ARGV[1])
  if reason ~= 'WRONG_TYPE' then
    call('HSET', KEYS[1], 'quarantined_at', now, 'quarantine_reason', reason)
  end
  return {'quarantined', reason, tenant or ''}
end

-- Moves amount from reserved to remaining in exact arithmetic. Returns both as text; the third value is the reason if
-- the amount cannot be moved.
local function move_exactly(reserved, remaining, amount)
  -- @include int64
  local amount_high, amount_low = int64_parse(amount)
  local reserved_high, reserved_low = int64_parse(reserved)
  local remaining_high, remaining_low = int64_parse(remaining)
  if not reserved_high or not remaining_high then
    return nil, nil, 'INVALID_BUDGET'
  end
  reserved_high, reserved_low = int64_normal(reserved_high - amount_high, reserved_low - amount_low)
  if reserved_high < 0 then
    return nil, nil, 'RESERVED_UNDERFLOW'
  end
  remaining = int64_text(int64_normal(remaining_high + amount_high, remaining_low + amount_low))
  if not remaining then
    return nil, nil, 'BUDGET_OVERFLOW'
  end
  return int64_text(reserved_high, reserved_low), remaining
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

-- The decoder stops at a NUL byte without a word; an object has no length.
local decoded, scopes = pcall(json.decode, scopes_text)
if not decoded or type(scopes) ~= 'table' or #scopes == 0 or find(scopes_text, '\0', 1, true) then
  return set_aside('MALFORMED_SCOPES', now_text, tenant)
end
if #scopes > MAX_SCOPES then
  return set_aside('TOO_MANY_SCOPES', now_text, tenant)
end
local refusal = denied('PEXPIRE', KEYS[1]) or denied('HSET', KEYS[1]) or denied('ZADD', KEYS[2])
  or permitted and denied('XADD', KEYS[3])
if refusal then
  return refusal
end
local small_amount = #amount <= PLAIN_DIGITS and amount + 0
local budgets = {} -- key -> {reserved, remaining} after the writes; false if the budget is missing or closed
local missing, closed
local stem, suffix = ARGV[2], ':' .. unit
-- Turns scopes, in place, into the names of their budgets.
for i = 1, #scopes do
  local scope = scopes[i]
  if type(scope) ~= 'string' or scope == '' then
    return set_aside('MALFORMED_SCOPES', now_text, tenant)
  end
  local key = stem .. scope .. suffix
  scopes[i] = key
  local budget = budgets[key] -- if a scope is named twice, it is released twice
  if budget == nil then
    budget = attempt('HMGET', key, 'reserved', 'remaining', 'status')
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
    elseif permitted then -- on 6.2 a readable hash is also writable
      refusal = denied('HSET', key)
      if refusal then
        return refusal
      end
    end
    budgets[key] = budget
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
      budget[1], budget[2], problem = move_exactly(reserved, remaining, amount)
    end
    if problem == 'RESERVED_UNDERFLOW' and budget[3] == 'CLOSED' then
      -- The reserved amounts were released when the budget was closed: the budget is settled already, and stays.
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
  -- The numbers are put in as decimal text: a double would round them.
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

local added, problem = add_expiry(KEYS[2], KEYS[3], ARGV[1], tenant, row[8], unit, amount, row[9], expires_text,
  grace_text, row[10], missing_text, closed_text, ARGV[5], unpack(more))
if problem then
  return problem
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
