-- The next fencing token of a name, without a lease. A lease that is held stays held.
--
-- KEYS  marker, key
-- ARGV  1 marker   2 proposed token   3 how far it may be ahead, µs   4 fence retention, ms
-- Reply {1, now, token}; {-1, …}; {-2, now}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now, now_us = clock()
local fence = tonumber(ARGV[2])
if fence > now_us + ARGV[3] then return {-2, now} end

local record = redis.call('GET', KEYS[2])
local known, token, expires, lease, ttl, request, data = 0, 0, 0
if record then known, token, expires, lease, ttl, request, data = parse(record) end
if known >= fence then fence = known + 1 end
if expires > now then
  -- Its key outlives the lease by the retention.
  local rest = lease_part(digits(fence), digits(token), ttl, lease, request, data)
  redis.call('SETRANGE', KEYS[2], '26', digits(fence) .. rest)
else
  redis.call('SET', KEYS[2], string.rep('0', 26) .. digits(fence), 'PX', ARGV[4])
end
return {1, now, fence}
