-- Reads one page of the index by position, past the entries that were decided and stay in the index.
--
-- KEYS[1] -> the index  ZSET  id -> deadline, ms
-- ARGV[1] -> the highest score to read;  ARGV[2] -> the score to resume at
-- ARGV[3] -> how many entries of exactly this score to skip;  ARGV[4] -> the page size
-- Returns {id, score, id, score, ...}.

-- @include paging

return page(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
