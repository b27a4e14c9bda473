-- The greatest id that a stream has had.

-- @include effects

-- Returns nil and the error if there is no stream.
local function last_id(stream)
  local about = redis.pcall('XINFO', 'STREAM', stream)
  for i = 1, #about, 2 do
    if about[i] == 'last-generated-id' then
      return about[i + 1]
    end
  end
  return nil, about
end
