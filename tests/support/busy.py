"""Lua that keeps a server busy for a while."""

#: Defines `busy(micros)`. In Valkey and from Redis 7.2 on TIME stands still while a script runs, but there is os.clock,
#: which older versions lack.
BUSY = """
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
pcall(function()
  local clock = os.clock
  now = function() return clock() * 1000000 end
end)
local function busy(micros)
  local until_ = now() + micros
  while now() < until_ do end
end
"""
