-- What the ledger does beside a Cycles service on the same keys.

-- @include amounts
-- @include clock
-- @include rights

local cycles = {}
do
  -- The writes to the tenant's index by the time of creation, by the rule of the service. index -> ZSET, bare id ->
  -- created_at, ms; metadata -> HASH, whether the index is complete and how many ids the index has. If one of them
  -- cannot be kept, the metadata is deleted: the service then reads all reservations until it has made the index anew.
  -- A TTL of 0 deletes: Redis 6.2 cannot be asked for the right to DEL, and a trial of DEL would delete.
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

  -- The error if the user has no right to one of these writes. Nothing is written.
  function cycles.no_right(writes)
    for i = 1, #writes do
      local refusal = no_right(writes[i][1], writes[i][2])
      if refusal then
        return refusal
      end
    end
  end
end
