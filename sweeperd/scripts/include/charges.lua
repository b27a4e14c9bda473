-- Charges what no reservation holds, as the overage policy says.
--
-- Every budget is charged the same amount, so that what a scope spent is never more than its parent did. A budget funds
-- the charge from its remaining amount. Under ALLOW_WITH_OVERDRAFT what it cannot fund becomes its debt, and remaining
-- goes below 0 by as much.

-- @include amounts
-- @include budgets

local charges = {POLICIES = {REJECT = true, ALLOW_IF_AVAILABLE = true, ALLOW_WITH_OVERDRAFT = true}}
do
  local function available(budget)
    return amounts.less(budget.remaining, '0') and '0' or budget.remaining
  end

  -- Whether the policy lets this budget charge no more than it has: without an overdraft limit there is no overdraft.
  local function is_capped(budget, policy)
    return policy == 'ALLOW_IF_AVAILABLE' or (policy == 'ALLOW_WITH_OVERDRAFT' and budget.overdraft_limit == '0')
  end

  -- As much of extra as every capped budget has. The ones that do not have all of it are marked as over their limit.
  local function capped(each, extra, policy)
    local least = extra
    for i = 1, #each do
      if is_capped(each[i], policy) then
        local share = amounts.share(available(each[i]), each[i].times)
        if amounts.less(share, extra) then
          each[i].marked = true
        end
        if amounts.less(share, least) then
          least = share
        end
      end
    end
    return least
  end

  -- Takes extra out of remaining. Returns the refusal, or nil and the part of it that became debt.
  local function take(budget, extra, policy)
    local funded = extra
    if amounts.less(budget.remaining, extra) then
      if policy == 'REJECT' then
        return {'refused', 'INSUFFICIENT_BUDGET', budget.scope}
      end
      funded = available(budget)
    end
    local deficit = amounts.subtract(extra, funded)
    local debt = amounts.add(budget.debt, deficit)
    if not is_capped(budget, policy) and funded ~= extra
      and (not debt or amounts.less(budget.overdraft_limit, debt)) then
      return {'refused', 'OVERDRAFT_LIMIT_EXCEEDED', budget.scope}
    end
    budget.debt, budget.remaining = debt, amounts.subtract(budget.remaining, extra)
    if not budget.remaining then
      return {'refused', 'AMOUNT_OVERFLOW', budget.scope}
    end
    return budgets.add(budget, 'spent', funded), deficit
  end

  -- Charges extra to each mention of a budget. Returns the refusal of the first that refuses; or nil, what each mention
  -- was charged, and the part of it that became debt: for each mention one.
  function charges.make(mentions, each, extra, policy)
    extra = capped(each, extra, policy)
    local deficits = {}
    for i = 1, #mentions do
      local refusal
      refusal, deficits[i] = take(mentions[i], extra, policy)
      if refusal then
        return refusal
      end
    end
    return nil, extra, deficits
  end
end
