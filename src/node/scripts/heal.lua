-- Gives a lease back to a node that lost it, after a quorum has matched it (§1.7).
-- Never a vote: the caller does not count the answer.
--
-- KEYS  marker, what says that there are tombstones, tombstone of the lease, key × n,
--       [index of the semaphore]
-- ARGV  1 marker   2 lease id   3 token, 16 digits   4 its end by this node's clock, ms   5 ttl as granted, ms
--       6 how far the token may be ahead, µs   7 fence retention, ms   8 request as stored   9 n
--       10 data   11… slot × n, with an index
-- Reply {1, now} healed; {0, now} over, or somebody else's, or a later token is known, or this
--       lease was released here; {-1, …}; {-2, now}; {-3, now}
--
-- Its acquire may come even later than this: a tombstone that says 'healed' stops it, since a
-- release finds the lease here and leaves none.
local marks = redis.call('MGET', KEYS[1], KEYS[3])
if marks[1] ~= ARGV[1] then return {-1, 0, marks[1]} end
local now, now_us = clock()
if marks[2] == '' then return {-3, now} end
local token = tonumber(ARGV[3])
if token > now_us + ARGV[6] then return {-2, now} end

local n = tonumber(ARGV[9])
local index = KEYS[4 + n]
local ends = tonumber(ARGV[4])
if ends <= now then return {0, now} end
local fences, data = {}, ARGV[10]
for i = 4, 3 + n do
  fences[i] = ARGV[3]
  local record = redis.call('GET', KEYS[i])
  if record then
    local fence, _, expires, lease, _, _, stored = parse(record)
    if expires > now then
      if lease ~= ARGV[2] then return {0, now} end
      -- Held here, but not whole: another key of it was lost, or its place in the index.
      -- What is left is never shortened, and keeps the tokens that were issued since and the
      -- later data.
      ends = math.max(ends, expires)
      if edition(stored) > edition(data) then data = stored end
      if fence > token then fences[i] = sub(record, 27, 42) end
    elseif fence > token or is_left_of(ARGV[2], record) then
      -- A later lease has been here and is gone, or this one was released, perhaps with a lower
      -- token than the others have: what was sent to heal it is late. Which of them it was cannot
      -- be told any more once a contender has raised the fence, so nothing is healed then. (One that
      -- lost, and found nothing here, has left nothing.)
      return {0, now}
    end
  end
end

local remaining = ends - now
if index then
  -- Before the records: an index of the wrong type fails here, where nothing is written yet.
  for i = 11, 10 + n do redis.call('ZADD', index, ends, ARGV[i]) end
end
for i = 4, 3 + n do
  local rest = fences[i] .. lease_part(fences[i], ARGV[3], ARGV[5], ARGV[2], ARGV[8], data)
  redis.call('SET', KEYS[i], ends .. '0000000000000' .. rest, 'PX', remaining + ARGV[7])
end
local life = remaining + ARGV[7]
redis.call('SET', KEYS[3], 'healed', 'PX', life)
if redis.call('PTTL', KEYS[2]) < life then redis.call('SET', KEYS[2], '', 'PX', life) end
if index then
  if redis.call('PTTL', index) < remaining then redis.call('PEXPIRE', index, remaining) end
  redis.call('SET', index .. '//' .. ARGV[2], table.concat(ARGV, ' ', 11, 10 + n), 'PX', remaining)
  if ARGV[8] ~= '-' then
    redis.call('SET', index .. '///' .. string.match(ARGV[8], '^[^+]+'), ARGV[2], 'PX', remaining)
  end
end
return {1, now}
