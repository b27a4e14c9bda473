-- Finds the thresholds that a script's changes cross, and builds the event that announces them.
--
-- A budget's thresholds are whole percentages. It has reached one if (allocated - remaining) * 100 >= threshold *
-- allocated, computed exactly. A change crosses a threshold if it was reached only before or only after the change. A
-- budget with 0 allocated crosses none.

-- @include int64
-- @include whole

local thresholds = {}
do
  local MOST = 1000 -- %
  -- A limb times a factor of up to this is exact.
  local LARGEST_FACTOR = 900000

  -- Whether used >= allocated * factor. All are limbs, and used is multiplied by the same unit as the factor.
  local function reached(used_high, used_low, allocated_high, allocated_low, factor)
    local high, low = int64_normal(allocated_high * factor, allocated_low * factor)
    return used_high > high or (used_high == high and used_low >= low)
  end

  -- (allocated - remaining) * factor, as limbs.
  local function used(allocated_high, allocated_low, remaining, factor)
    local high, low = int64_parse(remaining)
    high, low = int64_normal(allocated_high - high, allocated_low - low)
    return int64_normal(high * factor, low * factor)
  end

  -- (allocated - remaining) / allocated with 4 decimals, rounded down, so that it never shows a threshold as reached
  -- that isn't.
  local function utilization(high, low, remaining)
    local used_high, used_low = used(high, low, remaining, 10000)
    local count = math.floor((used_high * LIMB + used_low) / (high * LIMB + low))
    if math.abs(count) < LARGEST_FACTOR then
      while reached(used_high, used_low, high, low, count + 1) do
        count = count + 1
      end
      while not reached(used_high, used_low, high, low, count) do
        count = count - 1
      end
    end
    return string.format('%.4f', count / 10000)
  end

  -- The text as JSON, without cjson, which not every script has loaded.
  local function quoted(text)
    return '"' .. string.gsub(text, '[%z\1-\31"\\]', function(character)
      return string.format('\\u%04x', string.byte(character))
    end) .. '"'
  end

  -- Adds the crossings of one budget to `found`, each as JSON.
  local function crossings_of(budget, counted_in, found)
    local allocated, remaining = budget.allocated, budget.remaining
    local high, low = int64_parse(allocated)
    local before_high, before_low = used(high, low, budget.before, 100)
    local after_high, after_low = used(high, low, remaining, 100)
    for text in string.gmatch(budget.thresholds, '%d+') do
      local threshold = tonumber(text)
      if threshold <= MOST then
        local is_reached = reached(after_high, after_low, high, low, threshold)
        if is_reached ~= reached(before_high, before_low, high, low, threshold) then
          -- Numbers are inserted as decimal text, because a double would round them.
          found[#found + 1] = string.format('{"scope":%s,"unit":%s,"threshold":%.14g,"direction":"%s",'
            .. '"utilization":%s,"allocated":%s,"remaining":%s}', quoted(budget.scope), quoted(counted_in),
            threshold / 100, is_reached and 'rising' or 'falling', utilization(high, low, remaining), allocated,
            remaining)
        end
      end
    end
  end

  -- The words of the XADD; nil if no threshold is crossed. key -> the stream; changes -> tables with scope, the texts
  -- of allocated, remaining and thresholds as in the hash, and before: remaining before the change; at -> now, ms;
  -- counted_in -> the unit; owner -> the tenant, '' if unknown.
  function thresholds.event(key, changes, at, counted_in, operation, id, owner, trace_id)
    local crossings, crossed, innermost = {}, {}, nil
    for i = 1, #changes do
      local budget, count = changes[i], #crossings
      if budget.thresholds and budget.remaining ~= budget.before and whole.is_amount(budget.allocated)
        and budget.allocated ~= '0' then
        crossings_of(budget, counted_in, crossings)
      end
      if #crossings > count then
        crossed[#crossed + 1], innermost = quoted(budget.scope), budget.scope
      end
    end
    if not innermost then
      return nil
    end
    return {'XADD', key, '*', 'type', 'budget.threshold_crossed', 'tenant', owner, 'id', id,
      'scope', innermost, 'scopes', '[' .. table.concat(crossed, ',') .. ']', 'at', at, 'data',
      '{"operation":"' .. operation .. '","crossings":[' .. table.concat(crossings, ',') .. ']}',
      trace_id and 'trace_id', trace_id}
  end
end
