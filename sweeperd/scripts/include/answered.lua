-- Appends the hash of the request to its reply, so that a client recognizes the reply to another request that was left
-- on a connection. An error carries no hash.

local function answered(reply, request_hash)
  if not reply.err then
    reply[#reply + 1] = request_hash
  end
  return reply
end
