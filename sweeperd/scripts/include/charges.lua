-- Charges what no reservation holds, as the overage policy says.
--
-- Every budget is charged the same amount, so that what a scope spent is never more than its parent did.

-- @include amounts
-- @include budgets

local charges = {POLICIES = {REJECT = true, ALLOW_IF_AVAILABLE = true, ALLOW_WITH_OVERDRAFT = true}}
do
  local function available(budget)
    return amounts.less(budget.remaining, '0') and '0' or budget.remaining
  end

  -- As much of extra as every budget has. The ones that do not have all of it are marked as over their limit.
  local function capped(each, extra)
    local least = extra
    for i = 1, #each do
      local share = amounts.share(available(each[i]), each[i].times)
      if amounts.less(share, extra) then
        each[i].marked = true
      end
      if amounts.less(share, least) then
        least = share
      end
    end
    return least
  end

  -- Takes extra out of remaining. What is not there becomes debt, where the policy allows it and up to the overdraft
  -- limit. Returns the refusal, or nil and the new debt.
  local function take(budget, extra, policy)
    local there = available(budget)
    if not amounts.less(there, extra) then
      budget.remaining = amounts.subtract(there, extra)
      return nil, '0'
    end
    if policy ~= 'ALLOW_WITH_OVERDRAFT' then
      return {'refused', 'INSUFFICIENT_BUDGET', budget.scope}
    end
    local deficit = amounts.subtract(extra, there)
    local debt = amounts.add(budget.debt, deficit)
    if not debt or amounts.less(budget.overdraft_limit, debt) then
      return {'refused', 'OVERDRAFT_LIMIT_EXCEEDED', budget.scope}
    end
    budget.debt = debt
    if there ~= '0' then -- a remaining below 0 stays
      budget.remaining = '0'
    end
    return nil, deficit
  end

  -- Charges each mention of a budget held, which was taken out of its reserved, and extra on top. Returns the refusal
  -- of the first that refuses; or nil, what each was charged, and the most that became debt in one of them.
  function charges.make(mentions, each, held, extra, policy)
    local most = '0'
    if policy == 'ALLOW_IF_AVAILABLE' then
      extra = capped(each, extra)
    end
    if extra ~= '0' then -- a remaining below 0 stays
      for i = 1, #mentions do
        local refusal, deficit = take(mentions[i], extra, policy)
        if refusal then
          return refusal
        end
        if amounts.less(most, deficit) then
          most = deficit
        end
      end
    end
    local charged = amounts.add(held, extra)
    for i = 1, #mentions do
      local refusal = budgets.add(mentions[i], 'spent', charged)
      if refusal then
        return refusal
      end
    end
    return nil, charged, most
  end
end
