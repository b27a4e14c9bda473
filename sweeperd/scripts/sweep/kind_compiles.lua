-- Can a user's file stand in the script of its kind?
--
-- KEYS[1] -> the kind's index, not read: the key sends the script to the right node of a Cluster
--
-- ARGV[1] -> the text of the file
-- ARGV[2..] -> the names of all known globals
--
-- Returns {error of the compiler or '', 1 if a script can ask this server for rights (from 7.0 on) else 0, name of an
-- unknown global, ...}.
--
-- If a file compiles alone, it is a closed block. Otherwise the file could close the function around it, or a comment,
-- and run as a part of the script that may write. An unknown global would not be hidden from the file.

local known = {}
for i = 2, #ARGV do
  known[ARGV[i]] = true
end
local body, problem = loadstring(ARGV[1], '@' .. KEYS[1])
local reply = {body and '' or problem, redis.acl_check_cmd and 1 or 0}
for name in pairs(_G) do
  if not known[name] then
    reply[#reply + 1] = tostring(name)
  end
end
return reply
