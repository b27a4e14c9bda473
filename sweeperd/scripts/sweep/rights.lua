-- Finds the commands that this connection's user may not run on this key. Changes nothing.
--
-- KEYS[1] -> the index, the event stream or the quarantine; of any type, or missing
-- ARGV[1..] -> the names of the commands
-- Returns the names of the refused commands.

-- @include trial

local READS = {
  EXISTS = {}, ZCARD = {}, HGET = {NOT_THERE}, HMGET = {NOT_THERE}, ZCOUNT = {'0', '0'}, ZRANGE = {'0', '0'},
  ZMSCORE = {NOT_THERE},
}

local refused = {}
for i = 1, #ARGV do
  local form, reply = READS[ARGV[i]]
  if form then
    reply = redis.pcall(ARGV[i], KEYS[1], unpack(form))
  else
    reply = trial(ARGV[i], KEYS[1])
  end
  if is_refusal(reply) then
    refused[#refused + 1] = ARGV[i]
  end
end
return refused
