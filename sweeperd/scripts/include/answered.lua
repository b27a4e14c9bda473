-- The last word of each reply is the hash of its request, so that a client recognizes a reply that was left on a
-- connection by another request. An error carries no hash.

local function answered(reply, request_hash)
  if not reply.err then
    reply[#reply + 1] = request_hash
  end
  return reply
end
