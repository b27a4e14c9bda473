-- Writes the event of an expired reservation, for expire.lua and settle.lua.

-- @include clock

-- add_expiry(index, stream, id, tenant, ..., trace_id, more words) removes the id from the index and adds the event to
-- the stream. It makes the first write of its script, and is the only step that may still fail: no check can rule out
-- that the stream has reached the greatest possible id. Returns the event's id; or nil and the error, with the index
-- restored.
local function add_expiry(index, stream, id, tenant, scope, unit, amount, created_at, expires_at, grace, extensions,
                          missing, closed, trace_id, ...)
  local indexed = redis.call('ZREM', index, id)
  local added = redis.pcall('XADD', stream, '*', 'id', id, 'tenant', tenant or '', 'scope', scope or '', 'unit', unit,
    'amount', amount, 'created_at', created_at or '', 'expires_at', expires_at, 'expired_at', clock.now_text,
    'grace_ms', grace, 'extensions', extensions or '', 'missing', missing, 'closed', closed, 'trace_id', trace_id, ...)
  if type(added) ~= 'table' then -- an error is a table, an id is a string
    return added
  end
  if indexed == 1 then
    redis.call('ZADD', index, expires_at, id)
  end
  return nil, added
end
