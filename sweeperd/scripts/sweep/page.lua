-- One page of the index, by position: the entries after the decided entries that stay in the index.
--
-- KEYS[1] -> the index  ZSET  id -> deadline, ms
--
-- ARGV[1] -> the last score of interest
-- ARGV[2] -> the score to go on at
-- ARGV[3] -> how many entries of exactly this score to pass over
-- ARGV[4] -> how many entries at most
--
-- Returns {id, score, id, score, ...}.

-- @include paging

return page(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
