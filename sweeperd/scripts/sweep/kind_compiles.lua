-- Checks that a user's file can be embedded in the script of its kind.
--
-- KEYS[1] -> the kind's index, never read: it routes the script to the right node of a Cluster
-- ARGV[1] -> the text of the file
-- ARGV[2..] -> the names of all known globals
-- Returns {compiler error or '', 1 if a script can check its rights on this server (7.0 or newer) else 0, name of an
-- unknown global, ...}.
--
-- A file that compiles alone is a closed block. Otherwise it could close the function around it, or a comment, and run
-- with write access as a part of the script. An unknown global would not be hidden from the file.

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
