-- Finds the commands that this connection's user may not run on this key. Changes nothing.
--
-- KEYS[1] -> the index, the event stream or the quarantine; of any type, or missing
--
-- ARGV[1..] -> the names of the commands
--
-- Returns the names of the refused commands.
--
-- Redis checks rights before it runs a command, so each command is tried in a form that changes nothing.

-- @include trial

local READS = {
  EXISTS = {}, ZCARD = {}, HGET = {NOT_THERE}, HMGET = {NOT_THERE}, ZCOUNT = {'0', '0'}, ZRANGE = {'0', '0'},
  ZMSCORE = {NOT_THERE},
}

-- The error for a missing right contains one of these: the second on Redis up to 7.0, the third on newer servers and on
-- Valkey. The last two mean that the command was renamed (6.2; 7.0 and newer).
local REFUSALS = {
  'NOPERM', 'user executing the script', 'ACL failure', 'Unknown Redis command', 'Unknown command',
}

local function is_refusal(problem)
  for i = 1, #REFUSALS do
    if string.find(problem, REFUSALS[i], 1, true) then return true end
  end
  return false
end

local refused = {}
for i = 1, #ARGV do
  local form, reply = READS[ARGV[i]]
  if form then
    reply = redis.pcall(ARGV[i], KEYS[1], unpack(form))
  else
    reply = trial(ARGV[i], KEYS[1])
  end
  -- A Redis imitation may return the error as another type than a string.
  if type(reply) == 'table' and is_refusal(tostring(reply.err or '')) then
    refused[#refused + 1] = ARGV[i]
  end
end
return refused
