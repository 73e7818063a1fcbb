-- The next fencing token of a name, without a lease. A lease that is held stays held.
--
-- KEYS  marker, key
-- ARGV  1 marker   2 proposed token   3 how far it may be ahead, µs   4 fence retention, ms
-- Reply {1, now, token}; {-1, …}; {-2, now}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now, now_us = clock()
local token = tonumber(ARGV[2])
if token > now_us + ARGV[3] then return {-2, now} end

local text = redis.call('GET', KEYS[2])
local record, held = text and read_record(text), false
if text and not record then error('not a lease record') end
if record then
  token = math.max(token, record:sub(3, 18) + 1)
  for _, _, expires in each_lease(record) do held = held or tonumber(expires) > now end
end
local fence = '2 ' .. TOKEN:format(token) .. ' '
if held then
  -- Its key outlives the lease by the retention.
  redis.call('SET', KEYS[2], fence .. record:sub(20), 'KEEPTTL')
else
  local rest = record and record:sub(33) or ' 00000000000000000000000000000000\n'
  redis.call('SET', KEYS[2], fence .. TIME:format(now) .. rest, 'PX', ARGV[4])
end
return {1, now, token}
