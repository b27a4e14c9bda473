-- Reads a reservation for the scripts of operators. Nothing here writes.

-- @include clock
-- @include lifetime

local look = {}
do
  -- The state and more of a reservation. Nil if there is no such key; nil and true if the key is no hash.
  function look.row(key)
    local row = redis.pcall('HMGET', key, 'state', 'expires_at', 'quarantined_at', 'created_at', 'estimate_amount',
      'estimate_unit', 'budgeted_scopes', 'affected_scopes', 'grace_ms', 'committed_at', 'released_at', 'expired_at',
      'dismissed_at', 'expired_event')
    if row.err then
      if string.find(row.err, 'WRONGTYPE', 1, true) then
        return nil, true
      end
      error(row.err)
    end
    if not row[1] and redis.call('EXISTS', key) == 0 then
      return nil
    end
    return row
  end

  -- The fault between the index and a reservation, or nil; then the score that the index should have, and the score
  -- found. All is read in one step, so the answer holds for that moment.
  --
  -- If a deadline cannot be read, the score is 0: the next sweep then decides the entry, and sets it aside. If the
  -- entry is due anyway, nothing is wrong. A reservation set aside is not lost. It is in the quarantine; or an operator
  -- dismissed it from there (`dismissed`); or another sweeper set it aside (`foreign_quarantine`).
  function look.fault(index, quarantine, id, row, wrong_type)
    local score = redis.call('ZSCORE', index, id)
    if not row then
      if score and not wrong_type then
        return 'orphan', '', score
      end
      return nil
    end
    if row[1] ~= 'ACTIVE' then
      return nil
    end
    local deadline = clock.whole(row[2])
    local wanted = deadline and row[2] or '0'
    if not score then
      if redis.call('ZSCORE', quarantine, id) then
        return nil
      elseif row[13] then
        return 'dismissed', '', ''
      elseif row[3] then
        return 'foreign_quarantine', '', ''
      end
      return 'lost', wanted, ''
    end
    if tonumber(score) ~= tonumber(wanted) and (deadline or tonumber(score) > clock.now) then
      return 'wrong_score', wanted, score
    end
    return nil
  end

  -- If the TTL of a living reservation's hash is too short: how long the hash has left, deadline and grace, ms.
  function look.too_short(key, row, default_grace)
    local deadline, grace = clock.whole(row[2]), clock.whole(row[9] or default_grace)
    if row[1] == 'ACTIVE' and not row[13] and deadline and grace then
      return lifetime.too_short(key, deadline, grace), deadline, grace
    end
  end
end
