-- Writes the records of cycles-server for many events: each event, an entry in two indexes, and for each subscription a
-- pending delivery for the dispatcher. The script is idempotent: an existing record stays, because its delivery may
-- have been sent already.
--
-- Events that share tenant, subscriptions and the tail of the deliveries' JSON form a group. If the index of a tenant
-- or of a subscription has the wrong type, only the events of that index fail.
--
-- KEYS[1] -> events:_all            ZSET    event id -> the event's time, ms
-- KEYS[2] -> dispatch:pending       LIST    delivery ids; the dispatcher pops from the right
-- KEYS[3] -> sweeperd:relay         HASH    `last`: the delivery at the right end; `since`: since when, ms; `waiting`:
--                                           since when events wait, ms, or empty
-- and for each group:
--   events:<tenant>                 ZSET    event id -> the event's time, ms
--   deliveries:<subscription id>    ZSET    delivery id -> when it was created, ms; one key for each subscription
--   and for each event:
--     event:<event id>              STRING  the event, JSON
--     delivery:<delivery id>        STRING  a delivery, JSON; one key for each subscription
--
-- ARGV[1] -> length of `event:` with the prefix;  ARGV[2] -> length of `delivery:` with the prefix
-- ARGV[3] -> lifetime of an event, seconds;  ARGV[4] -> lifetime of a delivery, seconds;  ARGV[5] -> now, ms
-- ARGV[6] -> the back-pressure limit: how many deliveries may be pending, 0 for no limit
-- ARGV[7] -> events of this time, ms, or older never wait
-- ARGV[8] -> how many tails of the deliveries' JSON follow: the part after the event id
-- and for each group:
--   number of subscriptions, number of events, number of the tail
--   for each subscription: its id, JSON
--   for each event: its time, ms; the event, JSON
--
-- Back-pressure: when the pending deliveries of an event exceed the limit, that event and all later ones with
-- deliveries wait, and nothing is written for them. The limit applies only while the dispatcher is alive: the right end
-- of the list must have changed within STILL.
--
-- Returns how many deliveries were created; when the script began, seconds and microseconds; for each failed event its
-- number, from 1, and why; and the number of each waiting event.
--
-- The first write, LPUSH or else SET, needs memory: at maxmemory Redis refuses it while nothing has changed. Nothing
-- can fail after it, because the rights and the types of all other keys are already checked. LPUSH has no form that
-- changes nothing, so the write itself checks its right. SET is checked for one event and one delivery: their ids are
-- hashes, so no ACL key pattern can tell them apart.

-- @include rights

-- Values per command.
local CHUNK = 1000
-- The dispatcher counts as dead when it has taken nothing for this long, ms.
local STILL = 60000
local ALL, DISPATCH, STATE = KEYS[1], KEYS[2], KEYS[3]
local EVENT_ID, DELIVERY_ID, NOW, ENDS = ARGV[1] + 1, ARGV[2] + 1, ARGV[5], 8

local began = redis.call('TIME')
redis.call('ZCARD', ALL)
local length = redis.call('LLEN', DISPATCH)

-- How many more deliveries fit below the limit.
local limit, room = tonumber(ARGV[6]), math.huge
local noted, oldest, since
if limit > 0 then
  local now = began[1] * 1000 + math.floor(began[2] / 1000)
  oldest = redis.call('LINDEX', DISPATCH, -1) or ''
  noted = redis.call('HMGET', STATE, 'last', 'since', 'waiting')
  since = tonumber(noted[2])
  -- An empty list proves that the dispatcher is alive.
  if length == 0 or oldest ~= noted[1] or not since or since > now then
    since = now
  end
  if now - since < STILL then
    room = limit - length
  end
end

-- By key: the entries to add to an index, score and member in turn, and the reason why nothing can be added.
local entries, problems, indexes = {[ALL] = {}}, {}, {ALL}
local function index(key)
  if not entries[key] then
    local reply = redis.pcall('ZCARD', key)
    local problem = type(reply) == 'table' and tostring(reply.err)
    if problem and string.find(problem, 'WRONGTYPE', 1, true) then
      problems[key] = 'WRONGTYPE ' .. key
    elseif problem then
      redis.call('ZCARD', key)
    end
    entries[key] = {}
    indexes[#indexes + 1] = key
  end
  return entries[key], problems[key]
end

-- Calls what(first, last) for each chunk of a list; never for an empty list.
local function chunks(list, what)
  local count = #list
  for first = 1, count, CHUNK do
    local last = first + CHUNK - 1
    what(first, last < count and last or count)
  end
end

local function exists(key)
  return redis.call('EXISTS', key) == 1
end

-- Usually all records are new, which a few EXISTS with many keys confirm. The keys also contain indexes, so a group's
-- place is known only after the groups before it have been read.
local records, groups = {}, {}
do
  local key, argument, number = 4, ENDS + 1 + ARGV[ENDS], 0
  while argument <= #ARGV do
    local subscriptions, events = tonumber(ARGV[argument]), tonumber(ARGV[argument + 1])
    groups[#groups + 1] = {key, argument, number, subscriptions, events}
    local first = key + subscriptions + 1
    key = first + events * (subscriptions + 1)
    for i = first, key - 1 do
      records[#records + 1] = KEYS[i]
    end
    argument = argument + 3 + subscriptions + 2 * events
    number = number + events
  end
end
local existing = 0
chunks(records, function(first, last)
  existing = existing + redis.call('EXISTS', unpack(records, first, last))
end)

local all, failed, waiting, pending = entries[ALL], {}, {}, {}
local with_deliveries = false

-- Whether an event of this time waits. Its deliveries have the keys from first to final.
local function waits(at, first, final)
  local count = 0
  for i = first, final do
    if existing == 0 or not exists(KEYS[i]) then
      count = count + 1
    end
  end
  with_deliveries = with_deliveries or count > 0
  if room == math.huge or count == 0 then
    return false
  end
  -- An event fits into an empty list, no matter how many deliveries it has.
  if tonumber(at) > tonumber(ARGV[7]) and count > room and room < limit then
    room = 0
    return true
  end
  room = room - count
  return false
end

local event_keys, event_values, delivery_keys, delivery_values = {}, {}, {}, {}
for _, group in ipairs(groups) do
  local key, argument, number, subscriptions, events = unpack(group)
  local of_tenant, problem = index(KEYS[key])
  local of_subscription, names = {}, {}
  for i = 1, subscriptions do
    local list, why = index(KEYS[key + i])
    problem = problem or why
    of_subscription[i] = list
    names[i] = '","subscription_id":' .. ARGV[argument + 2 + i] .. ',"event_id":"'
  end
  local tail = ARGV[ENDS + ARGV[argument + 2]]
  key, argument = key + subscriptions + 1, argument + 3 + subscriptions
  for n = 1, events do
    if problem then
      failed[#failed + 1] = number + n
      failed[#failed + 1] = problem
    elseif limit > 0 and waits(ARGV[argument], key + 1, key + subscriptions) then
      waiting[#waiting + 1] = number + n
    else
      local event_key = KEYS[key]
      local id = string.sub(event_key, EVENT_ID)
      if existing == 0 or not exists(event_key) then
        event_keys[#event_keys + 1], event_values[#event_values + 1] = event_key, ARGV[argument + 1]
        local at, end_all, end_tenant = ARGV[argument], #all, #of_tenant
        all[end_all + 1], all[end_all + 2] = at, id
        of_tenant[end_tenant + 1], of_tenant[end_tenant + 2] = at, id
      end
      for i = 1, subscriptions do
        local delivery_key = KEYS[key + i]
        if existing == 0 or not exists(delivery_key) then
          local delivery, list, place = string.sub(delivery_key, DELIVERY_ID), of_subscription[i], #pending + 1
          pending[place], delivery_keys[place] = delivery, delivery_key
          delivery_values[place] = '{"delivery_id":"' .. delivery .. names[i] .. id .. tail
          list[#list + 1], list[#list + 2] = NOW, delivery
        end
      end
    end
    key, argument = key + subscriptions + 1, argument + 2
  end
end

local refused = event_keys[1] and no_right('SET', event_keys[1])
  or delivery_keys[1] and no_right('SET', delivery_keys[1])
for _, key in ipairs(indexes) do
  refused = refused or (entries[key][1] and no_right('ZADD', key))
end
-- The back-pressure note: fields and values.
local note = {}
if limit > 0 then
  if oldest ~= noted[1] or not noted[2] or since < tonumber(noted[2]) then
    note = {'last', oldest, 'since', string.format('%d', since)}
  end
  if with_deliveries and (#waiting > 0) ~= (noted[3] and noted[3] ~= '') then
    note[#note + 1] = 'waiting'
    note[#note + 1] = #waiting > 0 and string.format('%d', began[1] * 1000) or ''
  end
  refused = refused or (note[1] and no_right('HSET', STATE))
end
if refused then
  return refused
end

chunks(pending, function(first, last)
  redis.call('LPUSH', DISPATCH, unpack(pending, first, last))
end)
for i = 1, #event_keys do
  redis.call('SET', event_keys[i], event_values[i], 'EX', ARGV[3])
end
for i = 1, #delivery_keys do
  redis.call('SET', delivery_keys[i], delivery_values[i], 'EX', ARGV[4])
end
for _, key in ipairs(indexes) do
  local list = entries[key]
  chunks(list, function(first, last)
    redis.call('ZADD', key, unpack(list, first, last))
  end)
end
if note[1] then
  redis.call('HSET', STATE, unpack(note))
end
return {#pending, began[1], began[2], failed, waiting}
