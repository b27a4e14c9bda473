-- The elements of a field that holds a JSON array of objects.

-- @include kind_checks
-- @include kind_json

-- For each element, the texts at these names or paths. value: the text of the field, or the array. Fails the check of
-- the plan if there are more than `most`.
local function each_element(value, field, most, names)
  if not value or value == '' then
    fail_check('MISSING_FIELD', field)
  end
  local array, why = value, nil
  if type(value) == 'string' then
    array, why = json_read.decoded(value, '[')
  elseif #value == 0 and next(value) ~= nil then
    array, why = nil, 'not a JSON array'
  end
  if not array then
    refuse_plan(field .. ': ' .. why)
  elseif #array > most then
    refuse_plan(field .. ' has ' .. #array .. ' elements, which need more writes than max_writes')
  end
  local rows = {}
  for i = 1, #array do
    if type(array[i]) ~= 'table' then
      refuse_plan('element ' .. i .. ' of ' .. field .. ' is not an object')
    end
    rows[i] = json_read.row(array[i], names)
  end
  return rows
end
