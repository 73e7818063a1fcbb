-- Grants one lease over all the given keys, or none of them.
--
-- KEYS  marker, tombstone of the lease, key × n, [index of the semaphore]
-- ARGV  1 marker        2 lease id          3 request id or '-'   4 ttl, ms
--       5 proposed token                    6 how far it may be ahead, µs
--       7 fence retention, ms               8 '1' = only look, never grant
--       9 n            10 data             11… slot × n, with an index
-- Reply {1, now, token}
--       {0, now, {remaining, ttl, token, fence, lease, same request?, data, slots?}}
--       {0, now} where only looking found nobody; {-1, 0, marker?}; {-2, now}; {-3, now}
--
-- A semaphore keeps beside its slots' records (index/SLOT): the index, a sorted set of
-- taken slots by expiry; index//LEASE, the slots of a lease; index///REQUEST, its lease.
-- e.g.  EVALSHA … 3 q:node q:undone:9f… q:lock:a  M 9f… - 30000 1790000000000000 60000000 600000 0 1 {}
local marks = redis.call('MGET', KEYS[1], KEYS[2])
if marks[1] ~= ARGV[1] then return {-1, 0, marks[1]} end
local now, now_us = clock()
if marks[2] then return {-3, now} end
local proposed = tonumber(ARGV[5])
if proposed > now_us + ARGV[6] then return {-2, now} end

local n = tonumber(ARGV[9])
local index = KEYS[3 + n]
local by_request = index and ARGV[3] ~= '-' and index .. '///' .. ARGV[3]

-- A retry of a request that holds other slots of this semaphore.
if by_request then
  local earlier = redis.call('GET', by_request)
  local slots = earlier and earlier ~= ARGV[2] and redis.call('GET', index .. '//' .. earlier)
  local record = slots and redis.call('GET', index .. '/' .. string.match(slots, '^%d+'))
  if record then
    local fb, fu, tb, tu, expires, ttl, lease, _, data = parse(record)
    if expires > now and lease == earlier then
      return {0, now, {expires - now, tonumber(ttl), tb + tu, fb + fu, lease, 1, data, slots}}
    end
  end
end

local fence, base, bump = proposed, ARGV[5], '0'
for i = 3, 2 + n do
  local record = redis.call('GET', KEYS[i])
  if record then
    local fb, fu, tb, tu, expires, ttl, lease, request, data = parse(record)
    if expires > now and lease ~= ARGV[2] then
      local same = request ~= '-' and string.match(request, '^[^+]+') == ARGV[3] and 1 or 0
      return {0, now, {expires - now, tonumber(ttl), tb + tu, fb + fu, lease, same, data}}
    end
    if lease == ARGV[2] and expires > now and fb + fu == tb + tu then
      -- The same attempt once more (a duplicated message): it has its answer already,
      -- unless tokens were issued since, which must not be given out twice.
      fu = fu - 1
    end
    if fb + fu + 1 > fence then
      fence, base, bump = fb + fu + 1, fb, fu + 1
    end
  end
end
if ARGV[8] == '1' then return {0, now} end

local ttl = tonumber(ARGV[4])
if index then
  -- Before the records: an index of the wrong type fails here, where nothing is written yet.
  for i = 11, 10 + n do redis.call('ZADD', index, now + ttl, ARGV[i]) end
end
local token = base .. ' ' .. bump .. ' '
local record = token .. token .. (now + ttl) .. ' ' .. ARGV[4] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[10]
for i = 3, 2 + n do
  redis.call('SET', KEYS[i], record, 'PX', ttl + ARGV[7])
end
if index then
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
  if redis.call('PTTL', index) < ttl then redis.call('PEXPIRE', index, ttl) end
  redis.call('SET', index .. '//' .. ARGV[2], table.concat(ARGV, ' ', 11, 10 + n), 'PX', ttl)
  if by_request then redis.call('SET', by_request, ARGV[2], 'PX', ttl) end
end
return {1, now, fence}
