-- Which of a few reservations are not there? Tells a walk over the index where to look closer.
--
-- KEYS -> reservation:res_<id>  HASH  the reservations
--
-- Returns the positions of those that are not there, from 0.

local gone = {}
for i = 1, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    gone[#gone + 1] = i - 1
  end
end
return gone
