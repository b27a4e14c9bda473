"""
`sweeperd reconcile`: a walk over all entries of a kind on a shard, while traffic goes on, without false findings.

- The index: SCAN over the hashes finds active hashes that the index lacks, and scores that differ from the hash;
  ZSCAN over the index finds entries without a hash. The first observation of a fault is only a hint: a service may
  write hash and entry in two steps. A second later a script reads hash, index and quarantine in one step. If the
  script confirms the fault, there is a finding. The script that mends an entry decides again, in the same step as the
  write.
- The counters: budgets of reservations, sums of a configured kind; see `counters`. A walk never changes a counter.

A walk fails with RedisUnavailable if the server changes during the walk (restart, fail-over, a moved slot of a
Cluster): a cursor of SCAN means nothing to another server, so entries would be left out.
"""
