-- Sets the remaining time of a lease that is still held, and carries its token:
-- the second fencing round, extending, proclaiming. All keys or none.
--
-- KEYS  marker, key × n      or, for a semaphore with n = 0:  marker, index
-- ARGV  1 marker   2 lease id   3 token   4 ttl in ms, 'own' (as granted) or 'keep' (as it is)
--       5 how far the token may be ahead, µs    6 fence retention, ms
--       7 n        8 new data or ''
--       9 a claim, or nothing: from now on only who names it undoes the grant
-- Reply {1, now, remaining, ttl, data, request, slots}; {0, now} not held (any more);
--       {-1, …}; {-2, now}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now, now_us = clock()
local token = tonumber(ARGV[3])

local keys, index, slots = KEYS, nil, ''
if ARGV[7] == '0' then
  index = KEYS[2]
  slots = redis.call('GET', index .. '//' .. ARGV[2])
  if not slots then return {0, now} end
  keys = {''}
  for slot in string.gmatch(slots, '%d+') do keys[#keys + 1] = index .. '/' .. slot end
end

local fences = {}
local expires, own, request, data
for i = 2, #keys do
  local record = redis.call('GET', keys[i])
  if not record then return {0, now} end
  local fb, fu, _, _, ends, ttl, lease, asked, old = parse(record)
  if ends <= now or lease ~= ARGV[2] then return {0, now} end
  if fb + fu < token then
    if token > now_us + ARGV[5] then return {-2, now} end
    fb, fu = ARGV[3], '0'
  end
  fences[i] = fb .. ' ' .. fu
  -- One lease: these are the same under every key.
  expires, own, request, data = ends, ttl, asked, old
end

local ttl, remaining = own, expires - now
if ARGV[4] ~= 'keep' then
  if ARGV[4] ~= 'own' then ttl = ARGV[4] end
  remaining = tonumber(ttl)
end
if ARGV[8] ~= '' then data = ARGV[8] end
local asked = string.match(request, '^[^+]+')
if ARGV[9] then request = asked .. '+' .. ARGV[9] end
local lease = ' ' .. ARGV[3] .. ' 0 ' .. (now + remaining) .. ' ' .. ttl .. ' ' ..
  ARGV[2] .. ' ' .. request .. ' ' .. data
if index then
  -- Before the records: an index of the wrong type fails here, where nothing is written yet.
  for slot in string.gmatch(slots, '%d+') do redis.call('ZADD', index, now + remaining, slot) end
end
for i = 2, #keys do
  redis.call('SET', keys[i], fences[i] .. lease, 'PX', remaining + ARGV[6])
end
if index then
  if redis.call('PTTL', index) < remaining then redis.call('PEXPIRE', index, remaining) end
  redis.call('PEXPIRE', index .. '//' .. ARGV[2], remaining)
  if asked ~= '-' then redis.call('PEXPIRE', index .. '///' .. asked, remaining) end
end
return {1, now, remaining, tonumber(ttl), data, request, slots}
