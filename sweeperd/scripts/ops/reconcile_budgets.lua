-- What a few budgets have reserved, all at one moment of this server's clock.
--
-- KEYS -> budget:<scope>:<unit>  HASH
--
-- Returns {ms, reserved, reserved, ...}: the decimal text of an int64, '' where there is no such budget, '?' where it
-- cannot be read.

-- @include clock
-- @include amounts

local found = {clock.now_text}
for i = 1, #KEYS do
  local reserved = redis.pcall('HGET', KEYS[i], 'reserved')
  if type(reserved) == 'table' then
    if not string.find(reserved.err, 'WRONGTYPE', 1, true) then
      return reserved
    end
    found[i + 1] = '?'
  elseif reserved then
    found[i + 1] = amounts.is_int64(reserved) and reserved or '?'
  else
    found[i + 1] = redis.call('EXISTS', KEYS[i]) == 0 and '' or '?'
  end
end
return found
