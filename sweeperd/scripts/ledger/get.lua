-- Reads a reservation.
--
-- KEYS[1] -> reservation:res_<id>  HASH
--
-- ARGV -> the fields, `state` among them
--
-- Returns {'ok', the values} or {'refused', code, reason}.

local row = redis.pcall('HMGET', KEYS[1], unpack(ARGV))
if row.err then
  if string.find(row.err, 'WRONGTYPE', 1, true) then
    return {'refused', 'INVALID_RESERVATION', 'WRONG_TYPE'}
  end
  return row
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'refused', 'RESERVATION_NOT_FOUND', ''}
end
return {'ok', row}
