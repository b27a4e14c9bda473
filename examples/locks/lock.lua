-- A lease on a resource. The resource's fence holds the last token that was given out. A lease with an older token lost
-- the resource already, so that there is nothing to free.

function decide(lease)
  if lease.state ~= 'HELD' then
    return 'skip', lease.state or ''
  end
  if not lease.resource or not lease.token then
    return 'quarantine', 'NO_RESOURCE'
  end
  if get('GET', 'locks:fence:' .. lease.resource) ~= lease.token then
    return 'skip', 'fenced off'
  end
  return 'expire'
end

-- Frees the resource and puts it into the list of those that may be taken.
function plan(lease)
  local writes = {{'RPUSH', 'locks:waiting:free', lease.resource}}
  if get('GET', 'locks:owner:' .. lease.resource) == lease.token then
    writes[2] = {'DEL', 'locks:owner:' .. lease.resource}
  end
  return writes, {resource = lease.resource, token = lease.token}
end
