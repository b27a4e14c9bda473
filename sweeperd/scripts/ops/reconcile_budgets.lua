-- Reads the reserved amounts of several budgets at one moment of this server's clock.
--
-- KEYS -> budget:<scope>:<unit>  HASH
-- Returns {ms, reserved, reserved, ...}: the decimal text of an int64; '' if the budget doesn't exist, '-' if it is
-- CLOSED, '?' if the amount is malformed.

-- @include clock
-- @include amounts

local found = {clock.now_text}
for i = 1, #KEYS do
  local row = redis.pcall('HMGET', KEYS[i], 'reserved', 'status')
  if row.err then
    if not string.find(row.err, 'WRONGTYPE', 1, true) then
      return row
    end
    found[i + 1] = '?'
  elseif row[2] == 'CLOSED' then
    found[i + 1] = '-'
  elseif row[1] then
    found[i + 1] = amounts.is_int64(row[1]) and row[1] or '?'
  else
    found[i + 1] = redis.call('EXISTS', KEYS[i]) == 0 and '' or '?'
  end
end
return found
