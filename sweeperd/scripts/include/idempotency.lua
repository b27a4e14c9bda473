-- Idempotency: a repeated request gets its first answer, which is recorded under the request's idempotency key.
--
-- The record is a STRING: the hash of the request, a newline, the answer. Only changes are recorded. A refusal changed
-- nothing, so the same request may be retried, and may succeed.

-- @include json
-- @include rights

local idempotency = {}
do
  local DAY = 86400000

  -- The reply if the request was answered before or reuses another request's key; nil for a new request. others: a
  -- Cycles service's records for the same key (STRING). Their answers are unknown here, so these requests are refused.
  function idempotency.replay(key, request_hash, others)
    local record = redis.call('GET', key)
    if not record then
      if others and #others > 0 and redis.call('EXISTS', unpack(others)) > 0 then
        return {'refused', 'IDEMPOTENCY_MISMATCH', ''}
      end
      return nil
    end
    local head = request_hash .. '\n'
    if string.sub(record, 1, #head) ~= head then
      return {'refused', 'IDEMPOTENCY_MISMATCH', ''}
    end
    return {'ok', string.sub(record, #head + 1)}
  end

  -- The reply to a new request, and the words of the SET that records the answer for a day, or for least ms if that is
  -- longer. Nil and the error if the user lacks the right to SET. Writes nothing.
  function idempotency.prepare(key, request_hash, answer, least)
    local refusal = no_right('SET', key)
    if refusal then
      return nil, refusal
    end
    local text = json.encode(answer)
    return {'ok', text},
      {'SET', key, request_hash .. '\n' .. text, 'PX', string.format('%d', math.max(DAY, least))}
  end
end
