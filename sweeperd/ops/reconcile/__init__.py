"""
`sweeperd reconcile`: a walk over all reservations of a shard, while traffic goes on, without false findings.

- The index: SCAN over the reservations finds ACTIVE ones that the index lacks, and scores that differ from the hash;
  ZSCAN over the index finds entries without a hash. The first sight of a fault is a hint only: a service may write its
  hash and its entry in two steps. A second later a script reads hash, index and quarantine in one step, and only what
  that script confirms is a finding. The script that mends an entry decides again, in the same step as it writes.
- The budgets: see `budget_drift`. A drift is reported where two walks, each with moments of its own, agree on it. This
  covers rules of `budget_drift` that are broken: the server's clock is set back, a service has a clock of its own, or a
  hash is removed as soon as its reservation ends. A walk never changes a budget.

A walk fails with RedisUnavailable where the server changes during it (restart, fail-over, a moved slot of a Cluster): a
cursor of SCAN means nothing to another server, so that reservations would be left out.
"""

from sweeperd.ops.reconcile.budgets import BudgetVerdict, judge_budget
from sweeperd.ops.reconcile.cursor import WalkCursor
from sweeperd.ops.reconcile.kind_cursor import KindCursor
from sweeperd.ops.reconcile.kind_report import KindFault, KindReport, KindStage
from sweeperd.ops.reconcile.kinds import mend_kind, reconcile_kind
from sweeperd.ops.reconcile.mend import BudgetRepair, mend, repair_budget
from sweeperd.ops.reconcile.report import FINDINGS, Fault, Finding, ReconcileReport, WalkStage, counts_text
from sweeperd.ops.reconcile.walk import WalkProgress, reconcile

__all__ = [
    "FINDINGS",
    "BudgetRepair",
    "BudgetVerdict",
    "Fault",
    "Finding",
    "KindCursor",
    "KindFault",
    "KindReport",
    "KindStage",
    "ReconcileReport",
    "WalkCursor",
    "WalkProgress",
    "WalkStage",
    "counts_text",
    "judge_budget",
    "mend",
    "mend_kind",
    "reconcile",
    "reconcile_kind",
    "repair_budget",
]
