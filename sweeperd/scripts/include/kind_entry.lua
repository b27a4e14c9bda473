-- Reads one entry of a kind and writes its outcome. The first write is always a ZREM, for maxmemory (rights.lua).

-- @include clock
-- @include kind_rights
-- @include permission

local entry = {}
do
  local call, attempt, find, format = redis.call, redis.pcall, string.find, string.format
  local lacks = lacks_right
  -- 1973 and 5138 in ms: an earlier deadline is in seconds, and would expire at once; a later one in seconds is in ms.
  local EARLIEST, LATEST = 100000000000, 100000000000000
  local key, index, events, quarantine, guarded, notes, marks, id, tenant
  -- How many ms a unit of scores and deadlines is.
  local unit
  -- Whether no living entry of the kind was seen yet, so that its settings may be wrong.
  local unproven
  -- For a protected entry, its score in `guarded`, as text.
  local since
  -- If the score of the index is the deadline: the score and the deadline as text, and whether the entry has a note.
  local score, due_text, noted

  -- keys: the entry's key, nil if it has none, the index, the event stream and the quarantine. absent: the name of a
  -- missing key. proven: '1' if a living entry was seen. unit_ms: see `unit`. The other keys are nil if the kind has no
  -- use for them:
  --   guarded  ZSET  the protected entries
  --   notes    HASH  id -> the deadline and the score that stands for it, of an entry whose score a script has set
  --   marks    HASH  id -> why it is in quarantine, of a kind whose entries are not hashes
  function entry.open(keys, entry_id, absent, proven, unit_ms, guarded_key, notes_key, marks_key)
    key, index, events, quarantine = keys[1], keys[2], keys[3], keys[4]
    guarded, notes, marks = guarded_key, notes_key, marks_key
    id, tenant, unproven, unit = entry_id, '', proven ~= '1', unit_ms
    entry_key, absent_key = key or index, absent
    since = guarded and call('ZSCORE', guarded, id)
  end

  -- Reads the deadline from the index. A note counts only while the index has the score of the note: any other score is
  -- the service's renewal. Returns the deadline as text; nil if the entry is not in the index. In a dry run, which has
  -- no trace id, a quarantined entry has its noted deadline.
  function entry.indexed(trace_id)
    noted, score = call('HGET', notes, id), call('ZSCORE', index, id)
    local deadline, set
    if noted then
      deadline, set = string.match(noted, '^(%S+) (%S*)$')
    end
    if score then
      due_text = tonumber(set) == tonumber(score) and deadline or score
    else
      due_text = trace_id == '' and deadline or nil
    end
    return due_text
  end

  -- The score of a time in ms, as text.
  function entry.score_of(ms)
    return unit == 1 and format('%.0f', ms) or format('%.3f', ms / unit)
  end

  -- Removes the entry from the protected entries, and its note. The rights are already checked.
  local function forget()
    if since then
      call('ZREM', guarded, id)
    end
    if noted then
      call('HDEL', notes, id)
    end
  end

  -- The same, after its removal from the index.
  local function leave()
    call('ZREM', index, id)
    forget()
  end

  -- The error if the user may not call `forget`.
  local function cannot_leave()
    return since and lacks('ZREM', guarded, '') or noted and lacks('HDEL', notes, '')
  end

  -- Sets the entry's tenant, for the reply and the event.
  function entry.belongs_to(name)
    tenant = name or ''
  end

  -- Quarantines the entry: removes it from the index and marks it. Returns the reply.
  function entry.set_aside(reason, why)
    call('ZCARD', quarantine) -- fail before the first write if a key has the wrong type
    if marks then
      call('HGET', marks, id)
    end
    if type(reason) ~= 'string' or not find(reason, '^[A-Z][A-Z0-9_]*$') then
      reason = 'SCRIPT_ERROR'
    end
    why = type(why) == 'string' and string.sub(why, 1, 256) or ''
    local marked = marks or reason ~= 'WRONG_TYPE' and key
    local refusal = lacks('ZADD', quarantine, '0', '') or marked and lacks('HSET', marked, 'f', 'v') or cannot_leave()
      or due_text and lacks('HSET', notes, 'f', 'v')
    if refusal then
      return refusal
    end
    leave()
    call('ZADD', quarantine, clock.now_text, id)
    if due_text then
      call('HSET', notes, id, due_text .. ' ')
    end
    if marks then
      call('HSET', marks, id, reason .. ' ' .. why)
    elseif marked then
      call('HSET', key, 'quarantined_at', clock.now_text, 'quarantine_reason', reason, 'quarantine_detail', why)
    end
    return {'quarantined', reason, tenant, why}
  end

  -- The values of these fields. Nil and the reply if the key is not a hash.
  function entry.read(...)
    local row = attempt('HMGET', key, ...)
    if row.err then
      return nil, find(row.err, 'WRONGTYPE', 1, true) and entry.set_aside('WRONG_TYPE') or row
    end
    return row
  end

  -- Removes the index entry and changes nothing else. why: what the settings don't say about this end.
  function entry.drop(outcome, detail, why)
    local reply, refusal = {outcome, detail and string.sub(detail, 1, 64), why}, cannot_leave()
    if refusal then
      return refusal
    end
    leave()
    return reply
  end

  -- The same for an entry that a wrong setting would drop too. While the kind is unproven, the entry stays. told:
  -- whether the settings name all other ends, so that this one is unexpected.
  function entry.drop_unknown(outcome, detail, why, told)
    why = string.sub(why or '', 1, 256)
    if unproven then
      return {'held', outcome, why}
    end
    return entry.drop(outcome, detail, told and why or nil)
  end

  -- Sets the score in the index, and the deadline in the hash if the field is given. waits: whether the entry keeps its
  -- deadline.
  function entry.move(score_text, field, waits)
    if score_text == score and not noted and not since then
      return {'not_due'} -- the service itself has set this score
    end
    local note = waits and due_text
    local refusal = lacks('ZADD', index, '0', '') or field and lacks('HSET', key, 'f', 'v') or cannot_leave()
      or note and lacks('HSET', notes, 'f', 'v')
    if refusal then
      return refusal
    end
    leave()
    call('ZADD', index, score_text, id)
    if field then
      call('HSET', key, field, score_text)
    end
    if note then
      call('HSET', notes, id, due_text .. ' ' .. score_text)
    end
    return {'not_due'}
  end

  -- If the score is the deadline, a TTL on a due entry is a renewal by a service that calls EXPIRE: the entry is due
  -- again when the TTL ends, and is made persistent so that it still exists then. Returns nil if there is no TTL.
  function entry.renewed()
    local left = call('PTTL', key)
    if left < 0 then
      return nil
    end
    local until_text = entry.score_of(clock.now + left)
    local refusal = lacks('ZREM', index, '') or lacks('ZADD', index, '0', '') or cannot_leave()
    -- The first write, because 6.2 has no form of it that changes nothing. It needs no memory.
    local kept = refusal or attempt('PERSIST', key)
    if type(kept) == 'table' then
      return kept
    end
    leave()
    call('ZADD', index, until_text, id)
    return {'not_due'}
  end

  -- Leaves the entry alone until `ends`, ms, but for a note that does not count any more.
  function entry.in_grace(ends)
    if noted and due_text == score then
      local refusal = lacks('HDEL', notes, '')
      if refusal then
        return refusal
      end
      call('HDEL', notes, id)
    end
    return {'in_grace', ends}
  end

  -- Protects the entry from this moment, ms, and checks again at `score`, ms.
  function entry.protect(from, again)
    local from_text, score_text = format('%.0f', from), entry.score_of(again)
    local refusal = lacks('ZADD', index, '0', '') or lacks('ZADD', guarded, '0', '')
      or due_text and lacks('HSET', notes, 'f', 'v')
    if refusal then
      return refusal
    end
    call('ZREM', index, id)
    call('ZADD', index, score_text, id)
    call('ZADD', guarded, from_text, id)
    if due_text then
      call('HSET', notes, id, due_text .. ' ' .. score_text)
    end
    return {'not_due', 'protected'}
  end

  -- When an entry that is due since this moment, ms, was to be checked. A protection delays that to the score in the
  -- index.
  function entry.asked(due)
    local at = since and call('ZSCORE', index, id)
    return math.min(clock.now, math.max(due, at and at * unit or due))
  end

  -- A deadline in ms, from a field or from the index; nil if the text is malformed.
  function entry.deadline(text)
    local value
    if text and (due_text or unit > 1) then
      value = due_text and tonumber(text) or clock.decimal(text)
      value = value and math.floor(value * unit + 0.5)
      -- A score may be in the far future, a field must be plausible.
      value = (due_text or value and value <= LATEST) and value
    else
      value = text and clock.whole(text)
    end
    return value and value >= EARLIEST and value or nil
  end

  -- The message for a malformed deadline. `field`: the field of the deadline.
  function entry.not_a_deadline(text, field)
    if text and unit == 1 and (due_text or clock.whole(text)) then
      return field .. ' is probably in seconds: it must be in milliseconds'
    end
    return field
  end

  -- Expires the entry. event: names and values for the stream. checked: the result of the plan (kind_plan.lua). Then
  -- follow the fields and values that mark the hash. Returns the reply.
  function entry.expire(event, checked, expires_text, lag, retention, ...)
    local missing, messages, writes = checked.missing or '[]', checked.messages, checked.writes
    event[#event + 1], event[#event + 2] = 'missing', missing
    local refusal = lacks('ZADD', index, '0', '') or lacks('XADD', events, '*', 'f', 'v')
    if key and retention == '0' then
      refusal = refusal or lacks('DEL', key)
    elseif key then
      refusal = refusal or lacks('HSET', key, 'f', 'v') or lacks('PEXPIRE', key, '0')
    end
    for i = 1, can_ask and 0 or #writes do
      refusal = refusal or lacks(writes[i][1], writes[i][2])
    end
    refusal = refusal or cannot_leave()
    if refusal then
      return refusal
    end
    local removed = call('ZREM', index, id)
    -- The stream may have reached the greatest possible id, so XADD can fail. So far only the ZREM has to be undone.
    local added = attempt('XADD', events, '*', unpack(event))
    if type(added) == 'table' then
      if removed == 1 then
        call('ZADD', index, score or expires_text, id)
      end
      return added
    end
    forget()
    for i = 1, #writes do
      call(unpack(writes[i]))
    end
    if key and retention == '0' then
      call('DEL', key)
    elseif key then
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
end
