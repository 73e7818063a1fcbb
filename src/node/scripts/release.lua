-- Takes a lease away wherever it is held here, and makes sure that it stays away:
-- where the acquire has not arrived yet, a tombstone meets it (§1.4).
-- Needs no marker, since forgetting is always safe. Part of batch.lua.
--
-- KEYS  tombstone of the lease, key × n      or, for a semaphore:  tombstone, index
-- ARGV  1 lease id   2 '1' = tell those who wait; a lost round is undone silently, or its own
--         undo would wake the contender that lost it
--       and where it takes more:  3 for the undo of a grant with a request id: the claim it was
--         made under, 0 = by the request itself; or '-'. A retry that has taken the lease over
--         since keeps it (§1.9)
--       4 '1' = KEYS has an index, under which the lease's slots are looked up
-- Reply 1 it was held; 0 it was not (any more)

-- How long a tombstone waits, ms: it and the acquire that it overtook sit in the same
-- stalled node and run within moments of each other.
local TOMBSTONE = 60000

-- Stores `text`, to expire when what is there does, or after `life` ms. Out of memory, Redis
-- refuses the first SET of a script but never a DEL, and after a DEL it lets the SET pass.
local function store(key, text, life)
  local done
  if life then
    done = redis.pcall('SET', key, text, 'PX', life)
  else
    done = redis.pcall('SET', key, text, 'KEEPTTL')
  end
  if done.err then
    life = life or math.max(redis.call('PTTL', key), 1)
    redis.call('DEL', key)
    redis.call('SET', key, text, 'PX', life)
  end
end

local function release(k, n, a, m, now)
  local mine, tell, claim = ARGV[a], ARGV[a + 1] == '1', m > 2 and ARGV[a + 2] or '-'
  local keys, first, last, index = KEYS, k + 1, k + n - 1, nil
  if m > 3 then
    index = KEYS[k + 1]
    local slots = redis.pcall('GET', index .. '//' .. mine)
    keys, first, last = {}, 1, 0
    if type(slots) == 'string' then
      for slot in string.gmatch(slots, '%d+') do
        last = last + 1
        keys[last] = index .. '/' .. slot
      end
    end
  end

  if claim ~= '-' then
    for i = first, last do
      local record = redis.pcall('GET', keys[i])
      if type(record) == 'string' and string.sub(record, 49, 80) == mine then
        local request = string.match(record, '^%d+ (%S+)', 82)
        if request and (string.match(request, '%+(%d+)$') or '0') ~= claim then return 0 end
      end
    end
  end

  if index and last > 0 then
    redis.call('DEL', index .. '//' .. mine)
    for i = first, last do redis.pcall('ZREM', index, string.match(keys[i], '%d+$')) end
  end

  local found, held = 0, 0
  for i = first, last do
    local record = redis.pcall('GET', keys[i])
    -- At its place in the record; no parse(), which would end the release at what is none.
    if type(record) == 'string' and string.sub(record, 49, 80) == mine then
      found = found + 1
      if tonumber(string.sub(record, 35, 47)) > now then held = held + 1 end
      store(keys[i], string.sub(record, 1, 16))
      if not index then
        if tell then redis.call('PUBLISH', keys[i], '') end
      else
        local request = string.match(record, '^%d+ ([^+%s]+)', 82)
        if request and request ~= '-' then
          local by_request = index .. '///' .. request
          if redis.pcall('GET', by_request) == mine then redis.call('DEL', by_request) end
        end
      end
    end
  end
  if index and found > 0 and tell then redis.call('PUBLISH', index, '') end
  -- Something is missing: a lease that has expired and gone, or one that is still on its way.
  local all = last - first + 1
  if found == 0 or found < all then store(KEYS[k], '', TOMBSTONE) end
  return held > 0 and held == all and 1 or 0
end

