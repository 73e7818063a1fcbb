-- Takes a lease away wherever it is held here, and makes sure that it stays away:
-- where the acquire has not arrived yet, a tombstone meets it (§1.4).
-- Needs no marker, since forgetting is always safe.
--
-- KEYS  tombstone of the lease, key × n      or, for a semaphore with n = 0:  tombstone, index
-- ARGV  1 lease id   2 fence retention, ms   3 life of the tombstone, ms   4 n
--       5 '1' = tell those who wait; a lost round is undone silently, or its own
--         undo would wake the contender that lost it
--       6 for the undo of a grant with a request id: the claim it was made under, 0 = by the
--         request itself. A retry that has taken the lease over since keeps it (§1.9)
-- Reply {1, now} it was held; {0, now} it was not (any more)
local now = clock()

-- Out of memory, Redis refuses the first SET of a script but never a DEL,
-- and after a DEL it lets the SET pass.
local function store(key, text, life)
  local done = redis.pcall('SET', key, text, 'PX', life)
  if type(done) == 'table' and done.err then
    redis.call('DEL', key)
    redis.call('SET', key, text, 'PX', life)
  end
end

local keys, index = KEYS, nil
if ARGV[4] == '0' then
  index = KEYS[2]
  local slots = redis.pcall('GET', index .. '//' .. ARGV[1])
  keys = {''}
  if type(slots) == 'string' then
    for slot in string.gmatch(slots, '%d+') do keys[#keys + 1] = index .. '/' .. slot end
  end
end

if ARGV[6] then
  for i = 2, #keys do
    local record = redis.pcall('GET', keys[i])
    if type(record) == 'string' then
      local lease, request = string.match(record, '^%d+ %d+ %d+ %d+ %d+ %d+ (%x+) (%S+) ')
      if lease == ARGV[1] and (string.match(request, '%+(%d+)$') or '0') ~= ARGV[6] then return {0, now} end
    end
  end
end

if index and #keys > 1 then
  redis.call('DEL', index .. '//' .. ARGV[1])
  for i = 2, #keys do redis.pcall('ZREM', index, string.match(keys[i], '%d+$')) end
end

local found, held = 0, 0
for i = 2, #keys do
  local record = redis.pcall('GET', keys[i])
  if type(record) == 'string' then
    -- The form in record.lua; no parse(), which would end the release at what is no record.
    local fence, expires, lease, request =
      string.match(record, '^(%d+ %d+) %d+ %d+ (%d+) %d+ (%x+) (%S+) ')
    if lease == ARGV[1] then
      found = found + 1
      if tonumber(expires) > now then held = held + 1 end
      store(keys[i], fence, ARGV[2])
      if not index then
        if ARGV[5] == '1' then redis.call('PUBLISH', keys[i], '') end
      elseif request ~= '-' then
        local by_request = index .. '///' .. string.match(request, '^[^+]+')
        if redis.pcall('GET', by_request) == ARGV[1] then redis.call('DEL', by_request) end
      end
    end
  end
end
if index and found > 0 and ARGV[5] == '1' then redis.call('PUBLISH', index, '') end
-- Something is missing: a lease that has expired and gone, or one that is still on its way.
if found == 0 or found < #keys - 1 then store(KEYS[1], '', ARGV[3]) end
return {held > 0 and held == #keys - 1 and 1 or 0, now}
