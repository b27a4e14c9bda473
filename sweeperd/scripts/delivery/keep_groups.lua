-- Creates missing consumer groups, and the stream with them, and notes each group's position, even at maxmemory.
--
-- KEYS[1] -> sweeperd:events  STREAM
-- KEYS[2] -> sweeperd:groups  HASH    group -> its note, JSON: `made_at`, `position`, `parked` (whether the group has
--                                     each owner of parked events, a digit each); for a replay, its description
-- ARGV -> four for each group: its name;  the position to create it at, so that it receives later events;
--         `seen`: the caller has seen the group, so the position holds, unless the note has an earlier one;
--         `kept`: the same for a group whose deliveries are records in this Redis: only the note tells which there are;
--         `new`, `backfill`: the caller has not, so the note's position is used; without a note the group begins now,
--         or in the past;
--         `replay`: the group is created only if its note exists, so only until the replay has ended;
--         how far back the group begins if its position is known from the note only, ms
-- Returns three for each group. The position: all events up to this id are acknowledged. When the group was made, ms:
-- older events age from that moment, and 0 means that the group began at that moment. The outcome: `there`; `made` for
-- the first time; `remade`; `ended`, a replay without a group; `rewound`; or `lost` if the user lacks the right to
-- XGROUP SETID.
--
-- XGROUP DELCONSUMER drops a consumer's pending events from the group. No process removes the owners of parked events.
-- If such an owner is gone, the group reads again from the noted position: some events are delivered twice, none is
-- lost.
--
-- An earlier position in the note belongs to an older copy: what the caller has seen acknowledged since then is pending
-- in that copy. Records of Cycles are missing from it, too, so without a note their group begins in the past again.
--
-- A position beyond the stream's last id belongs to a stream that was lost, or replaced by an older copy. There the
-- group would skip new events, so it begins that far back. XGROUP makes the first change, so only HSET needs a check.

-- @include clock
-- @include groups
-- @include last_id
-- @include rights

local GREATEST = '18446744073709551615' -- the greatest second half of an id

-- Compares ids as text, because a double cannot hold every half of an id exactly.
local function smaller(one, other)
  local a, b = {string.match(one, '^(%d+)%-(%d+)$')}, {string.match(other, '^(%d+)%-(%d+)$')}
  local half = a[1] == b[1] and 2 or 1
  return #a[half] < #b[half] or (#a[half] == #b[half] and a[half] < b[half])
end

-- An id before this one: the greatest such id, unless the second half is very large.
local function previous(id)
  local milliseconds, sequence = string.match(id, '^(%d+)%-(%d+)$')
  if sequence ~= '0' then
    return milliseconds .. '-' .. (#sequence < 16 and string.format('%d', tonumber(sequence) - 1) or '0')
  end
  return milliseconds == '0' and id or string.format('%d', tonumber(milliseconds) - 1) .. '-' .. GREATEST
end

local groups, problem = groups_of(KEYS[1])
if not groups then
  return problem
end
local last = last_id(KEYS[1]) or '0-0'

local PARKED = {'(parked)', '(parked alone)'}

-- Which owners of parked events the group has, a digit each; nil if the user lacks the right.
local function parked_of(name)
  local found, there = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], name), {}
  if found.err then
    return nil
  end
  for i = 1, #found do
    there[fields(found[i]).name] = true
  end
  return (there[PARKED[1]] and '1' or '0') .. (there[PARKED[2]] and '1' or '0')
end

local replies, missing, notes, rewound = {}, {}, {}, {}
for i = 1, #ARGV, 4 do
  local name, position, kind = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local oldest = string.format('%d', math.max(0, clock.now - tonumber(ARGV[i + 3]))) .. '-0'
  local note = redis.call('HGET', KEYS[2], name)
  local made_at = note and string.match(note, '"made_at": *(%d+)') or '0'
  local ahead = tonumber(made_at) > clock.now -- the clock was set back since
  made_at = ahead and clock.now_text or made_at
  local noted = note and string.match(note, '"position": *"(%d+%-%d+)"')
  local parked = note and string.match(note, '"parked": *"([01][01])"') or '00'
  local owners, group, outcome = parked, groups[name], 'remade'
  if group and kind ~= 'replay' then
    owners = parked_of(name) or parked
  end
  local gone = string.find(parked, '1.') and string.find(owners, '0.')
    or string.find(parked, '.1') and string.find(owners, '.0')
  if gone and noted and not no_right('XGROUP', KEYS[1], 'SETID') then
    outcome, position = 'rewound', noted
    rewound[#rewound + 1] = {name, position}
  elseif group then
    outcome, position = gone and 'lost' or 'there', group['last-delivered-id']
    local first = redis.call('XPENDING', KEYS[1], name, '-', '+', 1)[1]
    if first then
      position = previous(first[1])
    end
  elseif kind == 'replay' then
    if not note then
      outcome = 'ended'
    end
  elseif kind == 'seen' then
    position = noted and smaller(noted, position) and noted or position
  elseif kind == 'kept' then
    position, made_at = noted or position, noted and made_at or clock.now_text
  elseif noted then
    position = smaller(noted, oldest) and oldest or noted
    made_at = clock.now_text
  else
    outcome, made_at = 'made', kind == 'backfill' and clock.now_text or '0'
  end
  if outcome == 'made' or outcome == 'remade' then
    if smaller(last, position) then
      position = smaller(oldest, last) and oldest or last
    end
    missing[#missing + 1] = {name, position}
  end
  if kind ~= 'replay' and (position ~= noted or outcome ~= 'there' or ahead or owners ~= parked) then
    local more = group and owners ~= '00' and ',"parked":"' .. owners .. '"' or ''
    notes[#notes + 1] = name
    notes[#notes + 1] = '{"made_at":' .. made_at .. ',"position":"' .. position .. '"' .. more .. '}'
  end
  replies[#replies + 1], replies[#replies + 2], replies[#replies + 3] = position, made_at, outcome
end

if #missing > 0 or #notes > 0 then -- a rewound group also changes its note
  local refused = no_right('XACK', KEYS[1]) or no_right('HSET', KEYS[2])
  if refused then
    return refused
  end
  redis.call('XACK', KEYS[1], ARGV[1], '0-0') -- acknowledges nothing; for maxmemory: see rights.lua
  for i = 1, #missing do
    redis.call('XGROUP', 'CREATE', KEYS[1], missing[i][1], missing[i][2], 'MKSTREAM')
  end
  for i = 1, #rewound do
    redis.call('XGROUP', 'SETID', KEYS[1], rewound[i][1], rewound[i][2])
  end
  if #notes > 0 then
    redis.call('HSET', KEYS[2], unpack(notes))
  end
end
return replies
