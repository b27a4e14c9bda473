-- Counts the expiries of each tenant over windows of a fixed length. When a tenant's count in the present window
-- exceeds `factor` times the usual count, an event is added to the stream, once for each episode. An episode ends with
-- the first window below that threshold.
--
-- The usual count is a moving average over past windows, and at least 1. A window above the threshold counts as the
-- threshold, so that a burst raises the average slowly. A new tenant has no usual count until its first window ends.
-- Each call also samples a few tenants, and forgets those without an expiry for KEPT windows, or CROWDED ones if full.
--
-- KEYS[1] -> sweeperd:rates   HASH    tenant -> start of the window, ms; count; usual count or -1; 1 in an episode
-- KEYS[2] -> sweeperd:events  STREAM
-- ARGV[1] -> now, ms;  ARGV[2] -> length of a window, ms;  ARGV[3] -> factor;  ARGV[4] -> max tenants in the hash
-- ARGV[5] -> the type of the event;  ARGV[6] -> trace id
-- ARGV[7], ARGV[9], ... -> tenant;  ARGV[8], ARGV[10], ... -> how many reservations of the tenant have expired
-- Returns how many events were added.

-- @include rights
-- @include trial

local WEIGHT, PAGE = 0.2, 50
local KEPT, CROWDED = 300, 12 -- windows of 5 min: 25 h, so that a daily rhythm is remembered; 1 h
local now, window, factor = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local known, most = redis.call('HLEN', KEYS[1]), tonumber(ARGV[4])
redis.call('XLEN', KEYS[2]) -- fail before the first write if the key has the wrong type

local stale = {''} -- not the name of a tenant
local page = redis.call('HRANDFIELD', KEYS[1], PAGE, 'WITHVALUES')
for i = 1, #page, 2 do
  local start = tonumber(string.match(page[i + 1], '^%d+'))
  if not start or math.abs(now - start) > window * (known < most and KEPT or CROWDED) then
    stale[#stale + 1] = page[i]
  end
end

local function threshold(usual)
  return factor * math.max(usual, 1)
end

known = known - #stale + 1
local forgotten, events, rows = {}, {}, {}
for i = 1, #stale do
  forgotten[stale[i]] = true
end
for i = 7, #ARGV, 2 do
  local tenant, count = ARGV[i], tonumber(ARGV[i + 1])
  local row = not forgotten[tenant] and redis.call('HGET', KEYS[1], tenant)
  local start, counted, usual, episode = string.match(row or '', '^(%d+) (%d+) (%S+) (%d)$')
  start, counted, usual, episode = tonumber(start), tonumber(counted) or 0, tonumber(usual), episode == '1'
  usual = usual and usual >= 0 and usual or nil
  if start or known < most then
    known = start and known or known + 1
    start = start or now
    if now < start or now - start >= window then
      local elapsed = math.max(1, math.floor((now - start) / window))
      episode = episode and counted > threshold(usual or counted)
      if usual then
        usual = usual + WEIGHT * (math.min(counted, threshold(usual)) - usual)
      else
        usual = counted
      end
      -- Windows without an expiry since then.
      usual = usual * (1 - WEIGHT) ^ (elapsed - 1)
      episode = episode and elapsed == 1
      start, counted = now, 0
    end
    counted = counted + count
    if usual and not episode and counted > threshold(usual) then
      episode = true
      local minutes = window / 60000 -- rates are events per minute
      events[#events + 1] = {'type', ARGV[5], 'tenant', tenant, 'id', tenant, 'at', ARGV[1],
        'trace_id', ARGV[6], 'data', string.format(
          '{"metric":"expiry_rate","current_rate":%.6g,"threshold_rate":%.6g,"window_seconds":%d,"sample_count":%d}',
          counted / minutes, threshold(usual) / minutes, window / 1000, counted)}
    end
    rows[#rows + 1] = {tenant, string.format('%.0f %.0f %.17g %d', start, counted, usual or -1, episode and 1 or 0)}
  end
end

local refused = no_right('HDEL', KEYS[1]) or no_right('HSET', KEYS[1]) or no_right('XADD', KEYS[2])
if refused then
  return refused
end
trial('HDEL', KEYS[1]) -- for maxmemory: see rights.lua
for i = 1, #events do
  local added = (i == 1 and redis.pcall or redis.call)('XADD', KEYS[2], '*', unpack(events[i]))
  if type(added) == 'table' then -- an error: the stream refuses entries, and the rates stay unchanged
    return added
  end
end
redis.call('HDEL', KEYS[1], unpack(stale))
for i = 1, #rows do
  redis.call('HSET', KEYS[1], unpack(rows[i]))
end
return #events
