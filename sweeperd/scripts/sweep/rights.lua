-- Which of these commands may the user of this connection not run on this key? Nothing is changed.
--
-- KEYS[1] -> the index, the event stream or the quarantine; of any type, or missing
--
-- ARGV[1] -> a random text, which is no member of the key
-- ARGV[2..] -> the names of the commands
--
-- Returns the names of the refused ones.
--
-- Redis checks the rights before it runs a command, and each command is tried in a form that changes nothing: it only
-- reads, fails at one of its arguments, or removes a member that is not there.

local FORMS = {
  EXISTS = {}, ZCARD = {}, HGET = {'field'}, HMGET = {'field'}, ZCOUNT = {'0', '0'}, ZRANGE = {'0', '0'},
  ZREM = {ARGV[1]}, ZADD = {'no number', ARGV[1]}, HSET = {'field', 'value', 'no value'}, PEXPIRE = {'no number'},
  XADD = {'0-0', 'field', 'value'},
}

-- One of these is in the error where the user lacks the right: the second on Redis to 7.0, the third on newer servers
-- and on Valkey.
local REFUSALS = {'NOPERM', 'user executing the script', 'ACL failure'}

local function is_refusal(problem)
  for i = 1, #REFUSALS do
    if string.find(problem, REFUSALS[i], 1, true) then return true end
  end
  return false
end

local refused = {}
for i = 2, #ARGV do
  local reply = redis.pcall(ARGV[i], KEYS[1], unpack(FORMS[ARGV[i]]))
  -- An imitation of Redis may give the error as another type than a string.
  if type(reply) == 'table' and is_refusal(tostring(reply.err or '')) then
    refused[#refused + 1] = ARGV[i]
  end
end
return refused
