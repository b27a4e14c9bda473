-- Reads one entry of a kind and writes its outcome. The first write is always a ZREM because it needs no memory: at
-- maxmemory Redis accepts it, and then the writes that follow.

-- @include clock
-- @include kind_rights
-- @include permission

local entry
do
  local call, attempt, find = redis.call, redis.pcall, string.find
  local lacks = lacks_right
  -- 3 March 1973 in ms. An earlier deadline is in seconds, and would expire at once.
  local EARLIEST = 100000000000
  local key, index, events, quarantine, guarded, id, tenant
  -- Whether no living entry of the kind was seen yet, so that its settings may be wrong.
  local unproven
  -- For a protected entry, its score in `guarded`, as text.
  local since

  -- keys: the entry's hash, the index, the event stream, the quarantine, and, if entries can be protected, `guarded`,
  -- the protected entries. no_hash: the name of a missing hash of this kind. proven: '1' if a living entry was seen.
  local function open(keys, entry_id, no_hash, proven)
    key, index, events, quarantine, guarded = keys[1], keys[2], keys[3], keys[4], keys[5]
    id, tenant, unproven = entry_id, '', proven ~= '1'
    entry_key, absent_key = key, no_hash
    since = guarded and call('ZSCORE', guarded, id)
  end

  -- Removes the entry from the index and from the protected entries. The right to the latter is already checked.
  local function leave()
    call('ZREM', index, id)
    if since then
      call('ZREM', guarded, id)
    end
  end

  -- The error if the user may not call `leave`.
  local function cannot_leave()
    return since and lacks('ZREM', guarded, '')
  end

  -- Sets the entry's tenant, for the reply and the event.
  local function belongs_to(name)
    tenant = name or ''
  end

  -- Quarantines the entry: removes it from the index and marks its hash. Returns the reply.
  local function set_aside(reason, why)
    call('ZCARD', quarantine) -- fail before the first write if the key has the wrong type
    if type(reason) ~= 'string' or not find(reason, '^[A-Z][A-Z0-9_]*$') then
      reason = 'SCRIPT_ERROR'
    end
    why = type(why) == 'string' and string.sub(why, 1, 256) or ''
    local refusal = lacks('ZADD', quarantine, '0', '')
      or reason ~= 'WRONG_TYPE' and lacks('HSET', key, 'f', 'v') or cannot_leave()
    if refusal then
      return refusal
    end
    leave()
    call('ZADD', quarantine, clock.now_text, id)
    if reason ~= 'WRONG_TYPE' then
      call('HSET', key, 'quarantined_at', clock.now_text, 'quarantine_reason', reason, 'quarantine_detail', why)
    end
    return {'quarantined', reason, tenant, why}
  end

  -- The values of these fields. Nil and the reply if the key is not a hash.
  local function read(...)
    local row = attempt('HMGET', key, ...)
    if row.err then
      if find(row.err, 'WRONGTYPE', 1, true) then
        return nil, set_aside('WRONG_TYPE')
      end
      return nil, row
    end
    return row
  end

  -- Removes the index entry and changes nothing else. why: what the settings don't say about this end.
  local function drop(outcome, detail, why)
    local reply, refusal = {outcome, detail and string.sub(detail, 1, 64), why}, cannot_leave()
    if refusal then
      return refusal
    end
    leave()
    return reply
  end

  -- The same for an entry that a wrong setting would drop too. While the kind is unproven, the entry stays. told:
  -- whether the settings name all other ends, so that this one is unexpected.
  local function drop_unknown(outcome, detail, why, told)
    why = string.sub(why or '', 1, 256)
    if unproven then
      return {'held', outcome, why}
    end
    return drop(outcome, detail, told and why or nil)
  end

  -- Sets the score in the index, and the deadline in the hash if the field is given.
  local function move(score, field)
    local refusal = lacks('ZADD', index, '0', '') or field and lacks('HSET', key, 'f', 'v') or cannot_leave()
    if refusal then
      return refusal
    end
    leave()
    call('ZADD', index, score, id)
    if field then
      call('HSET', key, field, score)
    end
    return {'not_due'}
  end

  -- Protects the entry from this moment, ms, and checks again at `score`, ms.
  local function protect(from, score)
    local from_text, score_text = string.format('%.0f', from), string.format('%.0f', score)
    local refusal = lacks('ZADD', index, '0', '') or lacks('ZADD', guarded, '0', '')
    if refusal then
      return refusal
    end
    call('ZREM', index, id)
    call('ZADD', index, score_text, id)
    call('ZADD', guarded, from_text, id)
    return {'not_due', 'protected'}
  end

  -- When an entry that is due since this moment, ms, was to be checked. A protection delays that to the score in the
  -- index.
  local function asked(due)
    local score = since and call('ZSCORE', index, id)
    return math.min(clock.now, math.max(due, tonumber(score or due)))
  end

  -- A deadline in ms; nil if the text is malformed.
  local function deadline(text)
    local value = text and clock.whole(text)
    return value and value >= EARLIEST and value or nil
  end

  -- The message for a malformed deadline. `field`: the field of the deadline.
  local function not_a_deadline(text, field)
    if text and clock.whole(text) then
      return field .. ' is probably in seconds: it must be in milliseconds'
    end
    return field
  end

  -- Expires the entry. event: names and values for the stream. checked: the result of the plan (kind_plan.lua). Then
  -- follow the fields and values that mark the hash. Returns the reply.
  local function expire(event, checked, expires_text, lag, retention, ...)
    local missing, messages, writes = checked.missing or '[]', checked.messages, checked.writes
    event[#event + 1], event[#event + 2] = 'missing', missing
    local refusal = lacks('ZADD', index, '0', '') or lacks('XADD', events, '*', 'f', 'v')
      or (retention == '0' and lacks('DEL', key)
        or retention ~= '0' and (lacks('HSET', key, 'f', 'v') or lacks('PEXPIRE', key, '0')))
    for i = 1, can_ask and 0 or #writes do
      refusal = refusal or lacks(writes[i][1], writes[i][2])
    end
    refusal = refusal or cannot_leave()
    if refusal then
      return refusal
    end
    local indexed = call('ZREM', index, id)
    -- The stream may have reached the greatest possible id, so XADD can fail. So far only the ZREM has to be undone.
    local added = attempt('XADD', events, '*', unpack(event))
    if type(added) == 'table' then
      if indexed == 1 then
        call('ZADD', index, expires_text, id)
      end
      return added
    end
    if since then
      call('ZREM', guarded, id)
    end
    for i = 1, #writes do
      call(unpack(writes[i]))
    end
    if retention == '0' then
      call('DEL', key)
    else
      call('HSET', key, 'expired_at', clock.now_text, ...)
      call('PEXPIRE', key, retention)
    end
    -- Messages are published last, so that no retry repeats them. A message that Redis refuses is lost, because 6.2 has
    -- no way to ask for the right to a channel.
    for i = 1, messages and #messages or 0 do
      attempt(unpack(messages[i]))
    end
    return {'expired', tenant, lag, missing}
  end

  entry = {
    open = open, belongs_to = belongs_to, set_aside = set_aside, read = read, drop = drop,
    drop_unknown = drop_unknown, move = move,
    protect = protect, asked = asked, deadline = deadline, not_a_deadline = not_a_deadline, expire = expire,
  }
end
