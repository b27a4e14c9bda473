"""
Walks over all entries of a kind on a shard, under traffic, without false findings.

- The index: SCAN over the hashes finds active hashes that the index lacks, and wrong scores. ZSCAN over the index finds
  entries without a hash. A first observation is only a hint, because a service may write hash and entry in two steps.
  A second later a script reads hash, index and quarantine atomically and confirms the finding. The script that repairs
  an entry decides again, in the same step as its write.
- The counters: `budgets` of reservations, `sums` of a configured kind. A walk never changes a counter.

A walk fails with RedisUnavailable if the server changes meanwhile (restart, fail-over, a moved slot of a Cluster): a
SCAN cursor means nothing to another server, so entries would be missed.
"""
