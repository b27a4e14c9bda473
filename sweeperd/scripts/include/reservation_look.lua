-- What an operator's scripts see of a reservation. Nothing here writes.

-- @include clock

local look = {}
do
  -- The state and more of a reservation. Nil where there is no such key; nil and true where it is no hash.
  function look.row(key)
    local row = redis.pcall('HMGET', key, 'state', 'expires_at', 'quarantined_at', 'created_at', 'estimate_amount',
      'estimate_unit', 'budgeted_scopes', 'affected_scopes', 'grace_ms', 'committed_at', 'released_at', 'expired_at')
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

  -- What is wrong between the index and a reservation, or nil; then the score that it should have, and the one that
  -- it has. Both are read in the same moment, so it is so at that moment.
  --
  -- A deadline that cannot be read gives score 0: the sweep then looks at the entry at once, and sets it aside. Where
  -- its turn comes anyway, nothing is wrong. What is set aside is not lost: it is in the quarantine, or was dismissed
  -- from there by an operator, and the hash still says so.
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
      if row[3] or redis.call('ZSCORE', quarantine, id) then
        return nil
      end
      return 'lost', wanted, ''
    end
    if tonumber(score) ~= tonumber(wanted) and (deadline or tonumber(score) > clock.now) then
      return 'wrong_score', wanted, score
    end
    return nil
  end
end
