-- Reads the webhook subscriptions of many tenants of a Cycles installation. Read-only.
--
-- KEYS[1], ... -> webhooks:<tenant>     SET     ids of subscriptions
-- also read -> webhook:<id>             STRING  a subscription, JSON; the ids come from the sets
-- ARGV[1] -> `webhook:` with the prefix of the keys
-- Returns the ids of each set, or the error as text if the key has the wrong type. Then comes an array with each id,
-- once, followed by its record: a text, nil if it doesn't exist, or an array with the error if the key has the wrong
-- type.

local function read(command, key)
  local reply = redis.pcall(command, key)
  local problem = type(reply) == 'table' and reply.err
  if problem and not string.find(tostring(problem), 'WRONGTYPE', 1, true) then
    redis.call(command, key)
  end
  return reply, problem and tostring(problem)
end

local reply, records, known = {}, {}, {}
for i = 1, #KEYS do
  local ids, problem = read('SMEMBERS', KEYS[i])
  reply[i] = problem or ids
  for n = 1, problem and 0 or #ids do
    local id = ids[n]
    if not known[id] then
      known[id] = true
      local record, unreadable = read('GET', ARGV[1] .. id)
      records[#records + 1], records[#records + 2] = id, unreadable and {unreadable} or record
    end
  end
end
reply[#KEYS + 1] = records
return reply
