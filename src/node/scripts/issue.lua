-- The next fencing token of a name, without a lease. A lease that is held stays held.
--
-- KEYS  marker, key
-- ARGV  1 marker   2 proposed token   3 how far it may be ahead, µs   4 fence retention, ms
-- Reply {1, now, token}; {-1, …}; {-2, now}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now, now_us, now_text = clock()
local token = tonumber(ARGV[2])
if token > now_us + ARGV[3] then return {-2, now} end

local text = redis.call('GET', KEYS[2])
local record, held = text and read_record(text), false
if text and not record then error('not a lease record') end
if record then
  token = math.max(token, record:sub(17, 32) + 1)
  for _, expires in each_lease(record) do held = held or expires > now_text end
end
local fence = (record or PLAIN):sub(1, 16) .. TOKEN:format(token)
if held then
  -- Its key outlives the lease by the retention.
  redis.call('SET', KEYS[2], fence .. record:sub(33), 'KEEPTTL')
else
  local rest = (record or EMPTY):sub(47)
  -- What lies beside it may need the key for longer.
  local life = math.max(ARGV[4], redis.call('PTTL', KEYS[2]))
  redis.call('SET', KEYS[2], fence .. ' ' .. now_text .. rest, 'PX', life)
end
return {1, now, token}
