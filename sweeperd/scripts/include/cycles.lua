-- Keeps a Cycles service's indexes when the ledger runs beside it on the same keys.

-- @include amounts
-- @include clock
-- @include rights

local cycles = {}
do
  -- The writes to the tenant's index by creation time, as the service makes them. index -> ZSET, bare id -> created_at,
  -- ms; metadata -> HASH, whether the index is complete and how many ids it has. If either cannot be kept up to date,
  -- the metadata is deleted, and the service reads all reservations until it has rebuilt the index. The deletion is a
  -- TTL of 0, because Redis 6.2 has no way to ask for the right to DEL, and a trial of DEL would delete.
  function cycles.indexing(index, metadata, id)
    local kind, about = redis.call('TYPE', index).ok, redis.call('TYPE', metadata).ok
    if kind ~= 'zset' and kind ~= 'none' then
      return {{'PEXPIRE', metadata, '0'}}
    end
    local writes = {{'ZADD', index, clock.now_text, id}}
    if about == 'hash' and redis.call('HGET', metadata, 'state') == 'READY' then
      local count = redis.call('HGET', metadata, 'expected_count') or '0'
      local added = redis.call('ZSCORE', index, id) and '0' or '1'
      count = amounts.is_int64(count) and amounts.add(count, added)
      writes[2] = count and {'HSET', metadata, 'expected_count', count} or {'PEXPIRE', metadata, '0'}
    elseif about ~= 'hash' and about ~= 'none' then
      writes[2] = {'PEXPIRE', metadata, '0'}
    end
    return writes
  end

  -- The error if the user lacks the right to one of these writes. Read-only.
  function cycles.no_right(writes)
    for i = 1, #writes do
      local refusal = no_right(writes[i][1], writes[i][2])
      if refusal then
        return refusal
      end
    end
  end
end
