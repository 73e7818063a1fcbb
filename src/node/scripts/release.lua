-- Takes a lease away wherever it is held here, and makes sure that it stays away:
-- where the acquire has not arrived yet, a tombstone meets it (§1.4).
-- Needs no marker, since forgetting is always safe.
--
-- KEYS  tombstone of the lease, key × n, [index of the semaphore]
-- ARGV  1 lease id   2 fence retention, ms   3 life of the tombstone, ms
--       4 n          5… slot × n, with an index
-- Reply {1, now} it was held; {0, now} it was not (any more)
local now = clock()
local n = tonumber(ARGV[4])
local index = KEYS[2 + n]
local found, held, freed = 0, 0, false
for i = 2, 1 + n do
  local record = redis.pcall('GET', KEYS[i])
  if type(record) == 'string' then
    local fb, fu, _, _, expires, _, lease, request = parse(record)
    if lease == ARGV[1] then
      found = found + 1
      if expires > now then held = held + 1 end
      -- Out of memory, Redis refuses the first SET of a script but never a DEL,
      -- and after a DEL it lets the SET pass.
      local fence = fb .. ' ' .. fu
      local done = redis.pcall('SET', KEYS[i], fence, 'PX', ARGV[2])
      if type(done) == 'table' and done.err then
        redis.call('DEL', KEYS[i])
        redis.pcall('SET', KEYS[i], fence, 'PX', ARGV[2])
      end
      if index then
        redis.call('ZREM', index, ARGV[3 + i])
        if request ~= '-' then redis.call('DEL', index .. '//' .. request) end
        freed = true
      else
        redis.call('PUBLISH', KEYS[i], '')
      end
    end
  end
end
if freed then redis.call('PUBLISH', index, '') end
if found < n then redis.pcall('SET', KEYS[1], '', 'PX', ARGV[3]) end
return {held == n and 1 or 0, now}
