-- Charges amounts beyond a reservation, by the overage policy.
--
-- Every budget is charged the same amount, so that a scope never spends more than its parent. A budget funds the charge
-- from its remaining amount. Under ALLOW_WITH_OVERDRAFT the rest becomes the budget's debt, and remaining goes negative
-- by that much.

-- @include amounts
-- @include budgets

local charges = {POLICIES = {REJECT = true, ALLOW_IF_AVAILABLE = true, ALLOW_WITH_OVERDRAFT = true}}
do
  local function available(budget)
    return amounts.less(budget.remaining, '0') and '0' or budget.remaining
  end

  -- Whether the policy caps the charge at what the budget has. Without an overdraft limit, overdraft is not allowed.
  local function is_capped(budget, policy)
    return policy == 'ALLOW_IF_AVAILABLE' or (policy == 'ALLOW_WITH_OVERDRAFT' and budget.overdraft_limit == '0')
  end

  -- The part of extra that every capped budget can pay. Marks a budget that has less than extra as over its limit.
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

  -- Takes extra from remaining. Returns the refusal, or nil and the part that became debt.
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

  -- Charges extra to each mention of a budget. Returns the first refusal; or nil, the amount charged to each mention,
  -- and for each mention the part that became debt.
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

  -- Debits an amount that no reservation holds. Returns the refusal; or nil, the amount charged to each mention, and
  -- the largest debt that one mention incurred.
  function charges.debit(mentions, each, amount, policy)
    for i = 1, #each do
      local refusal = budgets.closed_to_spending(each[i])
      if refusal then
        return refusal
      end
    end
    local refusal, charged, deficits = charges.make(mentions, each, amount, policy)
    if refusal then
      return refusal
    end
    local debt = '0'
    for i = 1, #deficits do
      if amounts.less(debt, deficits[i]) then
        debt = deficits[i]
      end
    end
    return nil, charged, debt
  end

  -- Commits a reservation: charges amount and releases the rest. An amount above the estimate follows the reservation's
  -- overage policy. Returns the refusal; or nil, the amount charged, and the total debt of all budgets.
  function charges.commit(reservation, amount)
    local mentions, policy = reservation.mentions, reservation.overage_policy
    local charged, back, extra, debt = amount, '0', '0', '0'
    if amounts.less(reservation.amount, amount) then
      if not charges.POLICIES[policy] then
        return {'refused', 'INVALID_RESERVATION', 'INVALID_POLICY'}
      end
      if policy == 'REJECT' then
        return {'refused', 'ESTIMATE_EXCEEDED', ''}
      end
      charged, extra = reservation.amount, amounts.subtract(amount, reservation.amount)
    else
      back = amounts.subtract(reservation.amount, amount)
    end
    local refusal = budgets.settle(reservation.each, reservation.amount, back)
    if refusal or extra == '0' then
      return refusal, charged, debt
    end
    local deficits
    refusal, extra, deficits = charges.make(mentions, reservation.each, extra, policy)
    if refusal then
      return refusal
    end
    for i = 1, #deficits do
      debt = amounts.add(debt, deficits[i])
      if not debt then
        return {'refused', 'AMOUNT_OVERFLOW', mentions[i].scope}
      end
    end
    return nil, amounts.add(charged, extra), debt
  end
end
