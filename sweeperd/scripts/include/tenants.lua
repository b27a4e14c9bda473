-- The record of a tenant: JSON in a STRING, written by the service that administers tenants. A tenant without a record
-- is open. If the record is malformed, every request is refused, because the tenant may be closed.

-- @include json

local tenants = {}
do
  -- The refusal of a closed tenant, or nil. key -> tenant:<id>
  function tenants.refusal(key)
    local text = redis.pcall('GET', key)
    if not text then
      return nil
    end
    if type(text) == 'table' and not string.find(text.err, 'WRONGTYPE', 1, true) then
      return text
    end
    local decoded, record = pcall(json.decode, text)
    local status = decoded and type(record) == 'table' and record.status
    if status == 'CLOSED' then
      return {'refused', 'TENANT_CLOSED', ''}
    end
    if status ~= 'ACTIVE' and status ~= 'SUSPENDED' then
      return {'refused', 'INVALID_TENANT', ''}
    end
  end
end
