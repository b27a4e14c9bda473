-- Writes the records of cycles-server for many events: each event, an entry in two indexes, and for each subscription a
-- pending delivery for the dispatcher. The script is idempotent: an existing record stays, because its delivery may
-- have been sent already.
--
-- It also acknowledges the events, because a fail-over to a copy undoes all of a script or nothing. After a second
-- command, the copy could have the acknowledgement without the records.
--
-- Events that share tenant, subscriptions and the tail of the deliveries' JSON form a group. An index of the wrong type
-- fails only its own events.
--
-- KEYS[1] -> events:_all            ZSET    event id -> the event's time, ms
-- KEYS[2] -> dispatch:pending       LIST    delivery ids; the dispatcher pops from the right
-- KEYS[3] -> sweeperd:relay         HASH    what all processes note of the dispatcher, below
-- KEYS[4] -> sweeperd:events        STREAM
-- and for each group:
--   events:<tenant>                 ZSET    event id -> the event's time, ms
--   deliveries:<subscription id>    ZSET    delivery id -> when it was created, ms; one key for each subscription
--   and for each event:
--     event:<event id>              STRING  the event, JSON
--     delivery:<delivery id>        STRING  a delivery, JSON; one key for each subscription
-- ARGV[1] -> length of `event:` with the prefix;  ARGV[2] -> length of `delivery:` with the prefix
-- ARGV[3] -> lifetime of an event, seconds;  ARGV[4] -> lifetime of a delivery, seconds;  ARGV[5] -> now, ms
-- ARGV[6] -> the back-pressure limit: how many deliveries may be pending, 0 for no limit
-- ARGV[7] -> events of this time, ms, or older do not wait for a dispatcher that takes nothing
-- ARGV[8] -> how long the pending deliveries may take the dispatcher, ms
-- ARGV[9] -> dispatch:ordering:lock (STRING), which a dispatcher holds while it takes and sends a delivery. It is only
--            read, and KEYS would take full access to it.
-- ARGV[10] -> the relay's group
-- ARGV[11] -> how many tails of the deliveries' JSON follow: the part after the event id
-- and for each group:
--   number of subscriptions, number of events, number of the tail
--   for each subscription: its id, JSON
--   for each event: its time, ms; the event, JSON; its id in the stream
--
-- Back-pressure: an event whose deliveries do not fit waits, and so do all later ones with deliveries. As many
-- fit as the dispatcher takes in ARGV[8], up to the limit, less those that are pending. What it takes is counted at the
-- right end, because others push to the left end. The notes:
--
--   `last`, `since`     the delivery at the right end, and since when, ms
--   `waiting`           since when events wait, ms, or empty
--   `mark`, `behind`    a delivery, and how many were to be taken up to it: the leftmost one, unless that is far away
--   `at`, `taken`       since when takings are counted, ms; and how many there were before `mark` was noted
--   `emptied`           1: the dispatcher may have had nothing to take meanwhile
--   `admit`             how many may be pending
--
-- Of n takings in a time, all but the last are finished, and one more may be under way. That bounds the rate from below
-- and, while the list was never empty, from above; `admit` is kept within. It grows only when the list was found empty
-- or ARGV[8] is over, because receivers differ. It is doubled at most, and then the count begins anew, because many
-- idle dispatchers take many deliveries at once, and may still be slow.
--
-- The limit applies only while the dispatcher is alive: the right end has changed within STILL, or the lock is held and
-- will end. A replica that dies with the lock stops the others for as long.
-- Returns how many deliveries were created; when the script began, seconds and microseconds; for each failed event its
-- number, from 1, and why; and the number of each waiting event.
--
-- The first write, LPUSH or else SET, needs memory: at maxmemory Redis refuses it while nothing has changed. LPUSH has
-- no form that changes nothing, so the write itself checks its right. SET is checked for one event and one delivery:
-- their ids are hashes, so no ACL key pattern can tell them apart.

-- @include rights

-- Values per command.
local CHUNK = 1000
-- The dispatcher counts as dead when it has taken nothing for this long, ms: it recovers from a crash within it.
local STILL = 180000
-- How many may be pending while nothing is known of the dispatcher.
local FEW = 2
local ALL, DISPATCH, STATE, STREAM, LOCK, GROUP = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[9], ARGV[10]
local EVENT_ID, DELIVERY_ID, NOW, ENDS = ARGV[1] + 1, ARGV[2] + 1, ARGV[5], 11

local began = redis.call('TIME')
redis.call('ZCARD', ALL)
redis.call('XLEN', STREAM)
local length = redis.call('LLEN', DISPATCH)

-- How many more deliveries fit; whether the dispatcher takes nothing; the notes to write, and whether to mark anew.
local limit, room, still = tonumber(ARGV[6]), math.huge, false
local note, noted, marks = {}, nil, false
local function keep(name, value)
  note[#note + 1], note[#note + 2] = name, value
end
if limit > 0 then
  local now, wait = tonumber(NOW), tonumber(ARGV[8])
  local oldest = redis.call('LINDEX', DISPATCH, -1) or ''
  noted = redis.call('HMGET', STATE, 'last', 'since', 'waiting', 'mark', 'behind', 'at', 'taken', 'emptied', 'admit')
  local before = tonumber(noted[2])
  local since = before
  -- An empty list proves that the dispatcher is alive.
  if length == 0 or oldest ~= noted[1] or not since or since > now then
    since = now
  end
  if oldest ~= noted[1] or not before or since < before then
    keep('last', oldest)
    keep('since', string.format('%d', since))
  end
  still = now - since >= STILL

  local behind, at, taken, admit = tonumber(noted[5]), tonumber(noted[6]), tonumber(noted[7]), tonumber(noted[9])
  local emptied, elapsed = noted[8] == '1', at and math.max(1, now - at)
  if not (behind and at and taken and admit) or now - at < -wait or elapsed > 2 * wait then
    admit, at, taken, emptied, marks = FEW, now, 0, false, true
  else
    local mark = behind > 0 and noted[4]
    local place, count = mark and redis.call('LPOS', DISPATCH, mark, 'RANK', -1, 'MAXLEN', behind)
    if place then
      count = taken + math.max(0, behind - (length - place))
    else
      count, emptied, marks = taken + behind, true, true
    end
    local least, most = math.floor((count - 1) * wait / elapsed), math.floor((count + 1) * wait / elapsed)
    local grows = least > admit and (emptied or elapsed >= wait)
    if grows then
      admit = math.min(2 * admit, least)
    elseif not emptied and most < admit then
      admit = math.max(1, most)
      keep('admit', string.format('%d', admit))
    end
    if grows or elapsed >= wait then
      at, count, emptied, marks = now, 0, false, true
    end
    taken = count
  end
  admit = math.min(admit, limit)
  if marks then
    keep('at', string.format('%d', at))
    keep('taken', string.format('%d', taken))
    keep('emptied', emptied and '1' or '')
    keep('admit', string.format('%d', admit))
  end
  if not still or redis.call('PTTL', LOCK) > 0 then
    room = admit - length
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
  local key, argument, number = 5, ENDS + 1 + ARGV[ENDS], 0
  while argument <= #ARGV do
    local subscriptions, events = tonumber(ARGV[argument]), tonumber(ARGV[argument + 1])
    groups[#groups + 1] = {key, argument, number, subscriptions, events}
    local first = key + subscriptions + 1
    key = first + events * (subscriptions + 1)
    for i = first, key - 1 do
      records[#records + 1] = KEYS[i]
    end
    argument = argument + 3 + subscriptions + 3 * events
    number = number + events
  end
end
local existing = 0
chunks(records, function(first, last)
  existing = existing + redis.call('EXISTS', unpack(records, first, last))
end)

local all, failed, waiting, pending = entries[ALL], {}, {}, {}
local with_deliveries, alone = false, length == 0

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
  if count > room and not alone and not (still and tonumber(at) <= tonumber(ARGV[7])) then
    room = 0
    return true
  end
  room, alone = room - count, false
  return false
end

local event_keys, event_values, delivery_keys, delivery_values, done = {}, {}, {}, {}, {}
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
      failed[#failed + 1], failed[#failed + 2] = number + n, problem
    elseif limit > 0 and waits(ARGV[argument], key + 1, key + subscriptions) then
      waiting[#waiting + 1] = number + n
    else
      local event_key = KEYS[key]
      local id = string.sub(event_key, EVENT_ID)
      done[#done + 1] = ARGV[argument + 2]
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
    key, argument = key + subscriptions + 1, argument + 3
  end
end

local refused = event_keys[1] and no_right('SET', event_keys[1])
  or delivery_keys[1] and no_right('SET', delivery_keys[1])
  or done[1] and no_right('XACK', STREAM)
for _, key in ipairs(indexes) do
  refused = refused or (entries[key][1] and no_right('ZADD', key))
end
if limit > 0 then
  if marks then
    local behind = math.min(length + #pending, limit)
    keep('mark', pending[behind - length] or behind > 0 and redis.call('LINDEX', DISPATCH, -behind) or '')
    keep('behind', string.format('%d', behind))
  end
  if with_deliveries and (#waiting > 0) ~= (noted[3] and noted[3] ~= '') then
    keep('waiting', #waiting > 0 and string.format('%d', began[1] * 1000) or '')
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
chunks(done, function(first, last)
  redis.call('XACK', STREAM, GROUP, unpack(done, first, last))
end)
return {#pending, began[1], began[2], failed, waiting}
