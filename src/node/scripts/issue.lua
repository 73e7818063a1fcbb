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

local lease_part, live_ms = '', 0
local record = redis.call('GET', KEYS[2])
if record then
  local known, _, expires = parse(record)
  if known >= fence then fence = known + 1 end
  if expires > now then
    live_ms = expires - now
    lease_part = string.sub(record, 17)
  end
end
redis.call('SET', KEYS[2], digits(fence) .. lease_part, 'PX', live_ms + ARGV[4])
return {1, now, fence}
