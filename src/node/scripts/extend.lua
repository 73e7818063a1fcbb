-- Sets the remaining time of a lease that is still held, and carries its token:
-- the second fencing round, extending, proclaiming. All keys or none.
--
-- KEYS  marker, key × n, [index of the semaphore]
-- ARGV  1 marker   2 lease id   3 token   4 ttl in ms, 'own' (as granted) or 'keep' (as it is)
--       5 how far the token may be ahead, µs    6 fence retention, ms
--       7 n        8 new data or ''  9… slot × n, with an index
-- Reply {1, now, remaining, ttl, data, request}; {0, now} not held (any more); {-1, …}; {-2, now}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now, now_us = clock()
local token = tonumber(ARGV[3])
if token > now_us + ARGV[5] then return {-2, now} end

local n = tonumber(ARGV[7])
local index = KEYS[2 + n]
local records = {}
for i = 2, 1 + n do
  local record = redis.call('GET', KEYS[i])
  if not record then return {0, now} end
  local fields = {parse(record)}
  if fields[5] <= now or fields[7] ~= ARGV[2] then return {0, now} end
  records[i] = fields
end

local remaining, ttl, data, request
for i = 2, 1 + n do
  local fb, fu, _, _, expires, own, _, asked, old = unpack(records[i])
  ttl = ARGV[4]
  remaining = expires - now
  if ttl ~= 'keep' then
    if ttl == 'own' then ttl = own end
    remaining = tonumber(ttl)
  else
    ttl = own
  end
  data, request = old, asked
  if ARGV[8] ~= '' then data = ARGV[8] end
  if fb + fu < token then fb, fu = ARGV[3], '0' end
  redis.call('SET', KEYS[i],
    fb .. ' ' .. fu .. ' ' .. ARGV[3] .. ' 0 ' .. (now + remaining) .. ' ' .. ttl .. ' ' ..
    ARGV[2] .. ' ' .. request .. ' ' .. data, 'PX', remaining + ARGV[6])
end
if index then
  for i = 9, 8 + n do redis.call('ZADD', index, now + remaining, ARGV[i]) end
  if redis.call('PTTL', index) < remaining then redis.call('PEXPIRE', index, remaining) end
  if request ~= '-' then redis.call('PEXPIRE', index .. '//' .. request, remaining) end
end
return {1, now, remaining, tonumber(ttl), data, request}
