-- The decision and the writes of expire.lua at this moment, with nothing written.
--
-- KEYS[1..4], ARGV[1..5] -> the keys and arguments of expire.lua, in the same order
--
-- Returns {the reply of expire.lua, {{command, key, ...}, ...}}: the reply and the writes.
--
-- expire.lua decides: its text is included below, and runs with a `redis` that records the writes and sends none.

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
