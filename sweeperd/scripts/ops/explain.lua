-- What expire.lua would decide now, and what it would write, without any of it being done.
--
-- KEYS[1..4], ARGV[1..5] -> what expire.lua takes, in its order
--
-- Returns {what expire.lua returns, {{command, key, ...}, ...}}: the reply and the writes.
--
-- The decision is that of expire.lua: its text is included below, and runs with a `redis` that records the writes and
-- sends none.

-- @include recorder

local reply, imitation, writes
do
  imitation, writes = recorder(redis)
  local redis = imitation
  reply = (function()
    -- @include sweep/expire
  end)()
end
if reply.err then
  return reply
end
return {reply, writes}
