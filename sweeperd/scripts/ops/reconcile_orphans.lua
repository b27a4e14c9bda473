-- Finds the missing reservations of a page of the index.
--
-- KEYS -> reservation:res_<id>  HASH  the reservations
--
-- Returns the positions of the keys without a hash, counted from 0.

local gone = {}
for i = 1, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    gone[#gone + 1] = i - 1
  end
end
return gone
