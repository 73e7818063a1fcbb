-- Reads what is stored under each key; changes nothing.
--
-- KEYS  marker, key × n
-- ARGV  1 marker
-- Reply {1, now, entry × n}; an entry is nil or {remaining, ttl, token, fence, lease, data},
--       with remaining 0 and lease '' where only the fence is left; {-1, …}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now = clock()
local reply = {1, now}
for i = 2, #KEYS do
  local record = redis.call('GET', KEYS[i])
  local entry = false
  if record then
    local fence, token, expires, lease, ttl, _, data = parse(record)
    if expires > now then
      entry = {expires - now, ttl, token, fence, lease, data}
    else
      entry = {0, 0, 0, fence, '', ''}
    end
  end
  reply[i + 1] = entry
end
return reply
