-- Reads a reservation for the operators' scripts. Read-only.

-- @include clock
-- @include lifetime

local look = {}
do
  -- The state and more of a reservation. Nil if the key doesn't exist; nil and true if it is not a hash.
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

  -- The fault between the index and a reservation, or nil; then the right score and the score found. All reads are one
  -- step, so the answer holds for that moment.
  --
  -- A malformed deadline gets score 0, so that the next sweep decides the entry and quarantines it. If the entry is due
  -- anyway, there is no fault. A reservation that was set aside isn't lost: it is in the quarantine, an operator
  -- dismissed it from there (`dismissed`), or another sweeper set it aside (`foreign_quarantine`).
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

  -- If the TTL of a living reservation's hash is too short: the remaining TTL, deadline and grace, ms.
  function look.too_short(key, row, default_grace)
    local deadline, grace = clock.whole(row[2]), clock.whole(row[9] or default_grace)
    if row[1] == 'ACTIVE' and not row[13] and deadline and grace then
      return lifetime.too_short(key, deadline, grace), deadline, grace
    end
  end
end
