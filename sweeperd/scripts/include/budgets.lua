-- Reads budgets by key, changes them as Lua tables, and writes them back.
--
-- After every script, for each budget: remaining = allocated - spent - reserved - debt. Spent is the funded amount. A
-- charge beyond it is debt, and may make remaining negative.

-- @include amounts
-- @include rights
-- @include whole

local budgets = {}
do
  local function budget_of(key, scope)
    local row = redis.pcall('HMGET', key, 'allocated', 'remaining', 'reserved', 'spent', 'debt', 'overdraft_limit',
      'is_over_limit', 'status', 'thresholds')
    if row.err then
      return nil, string.find(row.err, 'WRONGTYPE', 1, true) and {'refused', 'INVALID_BUDGET', scope} or row
    end
    if not row[1] and redis.call('EXISTS', key) == 0 then
      return false
    end
    -- Only remaining may be negative.
    if not (whole.is_amount(row[1]) and amounts.is_int64(row[2]) and whole.is_amount(row[3])
      and whole.is_amount(row[4]) and whole.is_amount(row[5]) and whole.is_amount(row[6])) then
      return nil, {'refused', 'INVALID_BUDGET', scope}
    end
    return {key = key, scope = scope, times = 0, allocated = row[1], remaining = row[2], reserved = row[3],
      spent = row[4], debt = row[5], overdraft_limit = row[6], over = row[7] == 'true' or row[7] == '1',
      status = row[8] or '', before = row[2], paid = row[4], owed = row[5], thresholds = row[9]}
  end

  -- Reads the budgets under these keys, one key for each scope. Returns two arrays and the scopes without a budget. The
  -- first array has an entry for each mention: a scope that is named twice is charged twice, as the sweep releases it
  -- twice. The second has each budget once, with the number of mentions in `times`. Returns nil and the reply if a
  -- budget holds malformed numbers.
  function budgets.read(keys, scopes)
    local known, mentions, each, missing = {}, {}, {}, {}
    for i = 1, #scopes do
      local key = keys[i]
      local budget = known[key]
      if budget == nil then
        local problem
        budget, problem = budget_of(key, scopes[i])
        if problem then
          return nil, problem
        end
        known[key] = budget
        if budget then
          each[#each + 1] = budget
        else
          missing[#missing + 1] = scopes[i]
        end
      end
      if budget then
        budget.times = budget.times + 1
        mentions[#mentions + 1] = budget
      end
    end
    return mentions, each, missing
  end

  -- The refusal of a request when no scope has a budget in its unit. stem: the prefix of a budget's key, before
  -- <scope>:<unit>. The protocol's other units are checked, because a wrong unit is the usual mistake.
  local function none(scopes, unit, stem)
    for i = 1, #scopes do
      for _, other in ipairs({'USD_MICROCENTS', 'TOKENS', 'CREDITS', 'RISK_POINTS'}) do
        if other ~= unit and redis.call('EXISTS', stem .. scopes[i] .. ':' .. other) == 1 then
          return {'refused', 'UNIT_MISMATCH', scopes[i]}
        end
      end
    end
    return {'refused', 'NO_BUDGET', scopes[#scopes]}
  end

  -- The budgets of a request's scopes, as from budgets.read; nil and the refusal if no scope has a budget in this unit.
  -- stem: the prefix of a budget's key, before <scope>:<unit>.
  function budgets.named(keys, scopes, unit, stem)
    local mentions, each, missing = budgets.read(keys, scopes)
    if mentions and #each == 0 then
      return nil, none(scopes, unit, stem)
    end
    return mentions, each, missing
  end

  -- The refusal if the budget's status forbids new spending, else nil.
  function budgets.closed_to_spending(budget)
    local status = budget.status
    if status == 'FROZEN' or status == 'CLOSED' then
      return {'refused', 'BUDGET_' .. status, budget.scope}
    elseif status ~= 'ACTIVE' then
      return {'refused', 'INVALID_BUDGET', budget.scope}
    end
  end

  -- Adds to a field. Returns the refusal if the sum exceeds int64.
  function budgets.add(budget, field, amount)
    local sum = amounts.add(budget[field], amount)
    if not sum then
      return {'refused', 'AMOUNT_OVERFLOW', budget.scope}
    end
    budget[field] = sum
  end

  -- Settles the hold on each budget, once for each mention: `amount` leaves `reserved`, its part `back` returns to
  -- `remaining`, and the rest is spent. If a closed budget has less reserved, closing it returned the whole amount, so
  -- the rest is taken from `remaining`, and `held` of the budget is false. Returns the refusal of the first budget that
  -- refuses.
  function budgets.settle(each, amount, back)
    local used = amounts.subtract(amount, back)
    for i = 1, #each do
      local budget = each[i]
      local held = not amounts.less(amounts.share(budget.reserved, budget.times), amount)
      budget.held = held
      if not held and budget.status ~= 'CLOSED' then
        return {'refused', 'RESERVED_UNDERFLOW', budget.scope}
      end
      for _ = 1, budget.times do
        if held then
          budget.reserved = amounts.subtract(budget.reserved, amount)
          budget.remaining = amounts.add(budget.remaining, back)
        else
          budget.remaining = amounts.subtract(budget.remaining, used)
        end
        budget.spent = amounts.add(budget.spent, used)
        if not (budget.remaining and budget.spent) then
          return {'refused', 'AMOUNT_OVERFLOW', budget.scope}
        end
      end
    end
  end

  -- The error if the user may not write one of these budgets, or not announce that they cross a threshold. Else nil;
  -- and if they cross one, the announcement for budgets.write. The further arguments are those of thresholds.event.
  -- Read-only.
  function budgets.no_right(each, outbox, ...)
    local watched
    for i = 1, #each do
      local budget = each[i]
      local refusal = no_right('HSET', budget.key)
      if refusal then
        return refusal
      end
      watched = watched or budget.thresholds
    end
    if watched then
      -- @include thresholds
      local announced = thresholds.event(outbox, each, ...)
      return announced and no_right('XADD', outbox), announced
    end
  end

  -- Every script that writes starts with the XADD of the announcement, or with HSET. At maxmemory Redis refuses either,
  -- and with it the whole script, while nothing is written. After the first write Redis refuses nothing.
  function budgets.write(each, announced)
    if announced then
      redis.call(unpack(announced))
    end
    for i = 1, #each do
      local budget = each[i]
      -- The amounts that stay are left out, which makes up for reading the thresholds.
      if budget.debt ~= budget.owed then
        redis.call('HSET', budget.key, 'remaining', budget.remaining, 'reserved', budget.reserved,
          'spent', budget.spent, 'debt', budget.debt)
      elseif budget.spent ~= budget.paid then
        redis.call('HSET', budget.key, 'remaining', budget.remaining, 'reserved', budget.reserved,
          'spent', budget.spent)
      else
        redis.call('HSET', budget.key, 'remaining', budget.remaining, 'reserved', budget.reserved)
      end
      if budget.marked then
        redis.call('HSET', budget.key, 'is_over_limit', 'true')
      end
    end
  end

  -- The balances in an answer. (An empty table becomes {}.)
  function budgets.balances(each)
    local balances = {}
    for i = 1, #each do
      local budget = each[i]
      balances[i] = {budget.scope, budget.allocated, budget.remaining, budget.reserved, budget.spent, budget.debt,
        budget.overdraft_limit, budget.over or budget.marked or false, budget.status}
    end
    return balances
  end
end
