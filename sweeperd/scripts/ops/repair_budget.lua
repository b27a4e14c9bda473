-- Moves an amount between `reserved` and `remaining` of one budget, to repair a drift that two walks found.
--
-- KEYS[1] -> budget:<scope>:<unit>           HASH
-- KEYS[2] -> sweeperd:lease:repair-budget     STRING  the token of the process that may repair
-- KEYS[3] -> sweeperd:events                 STREAM  gets an entry if the budget crosses a threshold
-- ARGV[1] -> '+': `reserved` is too high, the amount goes to `remaining`; '-': `reserved` is too low
-- ARGV[2] -> the amount, decimal text from 0 to 2^63-1;  ARGV[3] -> the token of the lease during the walks
-- ARGV[4] -> the prefix of a budget's name, before <scope>:<unit>
-- Returns 'repaired', or why nothing changed: 'NO_BUDGET', 'CLOSED', 'INVALID_BUDGET', 'OUT_OF_BOUNDS' (`reserved`
-- would be negative, or a value would exceed int64), 'LEASE_LOST' (another repair may have run since the walks).
--
-- The script adds and subtracts instead of setting a value read earlier, because traffic continues during the repair.
-- The lease ends with the repair, so the same call cannot act twice.

-- @include amounts
-- @include clock
-- @include rights
-- @include stream_room
-- @include thresholds
-- @include whole

if redis.call('GET', KEYS[2]) ~= ARGV[3] then
  return 'LEASE_LOST'
end
local row = redis.pcall('HMGET', KEYS[1], 'reserved', 'remaining', 'status', 'thresholds', 'allocated', 'scope',
  'unit')
if row.err then
  return string.find(row.err, 'WRONGTYPE', 1, true) and 'INVALID_BUDGET' or row
end
local reserved, remaining, amount = row[1], row[2], ARGV[2]
if not reserved and not remaining and redis.call('EXISTS', KEYS[1]) == 0 then
  return 'NO_BUDGET'
elseif row[3] == 'CLOSED' then
  return 'CLOSED'
elseif not (whole.is_amount(reserved) and amounts.is_int64(remaining) and whole.is_amount(amount)) then
  return 'INVALID_BUDGET'
end
if ARGV[1] == '+' then
  if amounts.less(reserved, amount) then
    return 'OUT_OF_BOUNDS'
  end
  reserved, remaining = amounts.subtract(reserved, amount), amounts.add(remaining, amount)
else
  reserved, remaining = amounts.add(reserved, amount), amounts.subtract(remaining, amount)
end
-- A sum above int64 is nil. A difference below int64 fails is_int64.
if not (reserved and remaining and amounts.is_int64(remaining)) then
  return 'OUT_OF_BOUNDS'
end
-- At maxmemory Redis 6.2 refuses the trial of HSET, but accepts HSET after the DEL, which needs no memory.
local refused = no_right('HSET', KEYS[1])
if refused and not string.find(refused.err, 'OOM', 1, true) then
  return refused
end
local announced
if row[4] then
  local name, scope, unit = string.sub(KEYS[1], #ARGV[4] + 1), row[6], row[7]
  if not (scope and unit) then
    scope, unit = string.match(name, '^(.*):(.*)$')
  end
  announced = thresholds.event(KEYS[3], {{scope = scope, thresholds = row[4], allocated = row[5], before = row[2],
    remaining = remaining}}, clock.now_text, unit, 'repair', name, string.match(scope, '^tenant:([^/]+)') or '')
  refused = announced and (no_room(KEYS[3], 1) or no_right('XADD', KEYS[3]))
  if refused and not string.find(refused.err, 'OOM', 1, true) then
    return refused
  end
end
redis.call('DEL', KEYS[2])
if announced then
  redis.call(unpack(announced))
end
redis.call('HSET', KEYS[1], 'reserved', reserved, 'remaining', remaining)
return 'repaired'
