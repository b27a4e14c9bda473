-- Reads a reservation.
--
-- KEYS[1] -> reservation:res_<id>  HASH
-- ARGV[1] -> the hash of the request
-- ARGV[2..] -> the fields to read, including `state`
-- Returns {'ok', the values, the hash of the request} or {'refused', code, reason, the hash of the request}.

-- @include answered

local function run()
  local row = redis.pcall('HMGET', KEYS[1], unpack(ARGV, 2))
  if row.err then
    return string.find(row.err, 'WRONGTYPE', 1, true) and {'refused', 'INVALID_RESERVATION', 'WRONG_TYPE'} or row
  end
  if redis.call('EXISTS', KEYS[1]) == 0 then
    return {'refused', 'RESERVATION_NOT_FOUND', ''}
  end
  return {'ok', row}
end

return answered(run(), ARGV[1])
