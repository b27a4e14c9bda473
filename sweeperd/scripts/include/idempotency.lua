-- The same request again gets the same answer: what was answered is kept under the request's idempotency key.
--
-- The record is a STRING: the hash of the request, a newline, the answer. Only what was done is recorded. A refusal
-- changed nothing, so the same request may be tried again, and may succeed.

local idempotency = {}
do
  local DAY = 86400000

  -- The reply to a request that was answered before, or that uses a key of another request; nil for a new one.
  function idempotency.replay(key, request_hash)
    local record = redis.call('GET', key)
    if not record then
      return nil
    end
    local head = request_hash .. '\n'
    if string.sub(record, 1, #head) ~= head then
      return {'refused', 'IDEMPOTENCY_MISMATCH', ''}
    end
    return {'ok', string.sub(record, #head + 1)}
  end

  -- Keeps the answer for a day, or for lifetime in ms where that is longer. Returns the reply.
  function idempotency.record(key, request_hash, answer, lifetime)
    local text = cjson.encode(answer)
    redis.call('SET', key, request_hash .. '\n' .. text, 'PX', string.format('%d', math.max(DAY, lifetime)))
    return {'ok', text}
  end
end
