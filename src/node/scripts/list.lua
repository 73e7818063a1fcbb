-- One step of a walk over the keys of a kind: the leases held among them.
--
-- KEYS  marker
-- ARGV  1 marker   2 cursor ('0' to begin)   3 pattern   4 how many keys to look at, about
-- Reply {1, now, next cursor, {key, remaining, ttl, token, fence, lease, data}, …}; {-1, …}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now = clock()
local step = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
local reply = {1, now, step[1]}
for _, key in ipairs(step[2]) do
  local record = redis.pcall('GET', key)
  if type(record) == 'string' then
    -- What is no record does not end the walk.
    local read, fence, token, expires, lease, ttl, _, data = pcall(parse, record)
    if read and fence and token and ttl and data and expires and expires > now then
      reply[#reply + 1] = {key, expires - now, ttl, token, fence, lease, data}
    end
  end
end
return reply
