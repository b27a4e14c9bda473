-- Sets fields of a hash, even at maxmemory.

-- @include rights
-- @include trial

-- words: names and values in turn. stream, event: the words of an event to add before, because a stream at the
-- greatest possible id refuses entries; nil for none. Returns the error if there is one; then nothing is written.
local function set_fields(key, words, stream, event)
  local refused = no_right('HDEL', key) or no_right('HSET', key) or event and no_right('XADD', stream)
  if refused then
    return refused
  end
  trial('HDEL', key) -- for maxmemory: see rights.lua
  local added = event and redis.pcall('XADD', stream, '*', unpack(event))
  if type(added) == 'table' then
    return added
  end
  redis.call('HSET', key, unpack(words))
end
