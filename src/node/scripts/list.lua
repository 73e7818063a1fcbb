-- One step of a walk over the keys of a kind: the leases held among them.
--
-- KEYS  marker
-- ARGV  1 marker   2 cursor ('0' to begin)   3 pattern   4 how many keys to look at, about
-- Reply {1, now, next cursor, {key, remaining, ttl, token, lease, version, data}, …}; {-1, …}
local marker = redis.call('GET', KEYS[1])
if marker ~= ARGV[1] then return {-1, 0, marker} end
local now = clock()
local step = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
local reply = {1, now, step[1]}
for _, key in ipairs(step[2]) do
  local text = redis.pcall('GET', key)
  -- What is no record does not end the walk.
  local record = type(text) == 'string' and read_record(text) or ''
  for at, id, expires in each_lease(record) do
    local read, lease = pcall(read_lease, record, at)
    if read and tonumber(expires) > now then
      local entry = show(id, expires, lease, now)
      table.insert(entry, 1, key)
      reply[#reply + 1] = entry
    end
  end
end
return reply
