-- Takes a lease away wherever it is held here, and makes sure that it stays away:
-- where the acquire has not arrived yet, a tombstone meets it (§1.4).
-- Needs no marker, since forgetting is always safe. Part of answer().
--
-- KEYS  key × n, or the index of a semaphore
-- text  R   2 lease id   34 '1' = tell those who wait; a lost round is undone silently, or its own undo
--       would wake the contender that lost it, and leaves no fence where it found nothing
--       The lease id alone is short for R, the lease id and '1'
-- ARGV  where it takes more:  1 for the undo of a grant with a request id: the claim it was
--         made under, 0 = by the request itself; or '-'. Whoever else has a claim keeps the lease
--         (§1.9), and it goes with the last; under a claim that nobody has, whoever holds it keeps it
--       2 '1' = KEYS is an index, under which the lease's slots are looked up
-- Reply 1 it was held, or a part of it; {1, 1} and it was not as it was acquired; 0 it was not (any more); {0, 1} it is, and stays, as others have claims

if op == 82 then
  local mine, tell, claim = sub(text, 2, 33), byte(text, 34) ~= 48, m > 0 and ARGV[a] or '-'
  local keys, first, last, index, read = KEYS, k, k + n - 1, nil, look
  if m > 1 then
    index = KEYS[k]
    local slots = redis.pcall('GET', index .. '//' .. mine)
    keys, first, last = {}, 1, 0
    if type(slots) == 'string' then
      for slot in string.gmatch(slots, '%d+') do
        last = last + 1
        keys[last] = index .. '/' .. slot
      end
    end
    read = function(i)
      local record = redis.pcall('GET', keys[i])
      return type(record) == 'string' and record
    end
  end

  -- By its place in the record; no parse(), which would end the release at what is none.
  local function request_of(record)
    return string.match(record, byte(record, 43) == 60 and '^%d+ (%S+)' or '^(%S+)', 85) or '-'
  end
  if claim ~= '-' then
    local stays = false
    for i = first, last do
      local record = read(i)
      if record and sub(record, 52, 83) == mine and sub(record, 1, 13) ~= ZEROS then
        local request = request_of(record)
        local claims = string.match(request, '%+.*$') or '+0'
        if claims ~= '+' .. claim then
          stays = true
          local others, left = string.gsub(claims .. '+', '%+' .. claim .. '%+', '+')
          if left > 0 then
            local from = byte(record, 43) == 60 and 102 or 85
            store(keys[i], sub(record, 1, from - 1) .. string.match(request, '^[^+]+') .. sub(others, 1, -2)
              .. sub(record, from + #request))
          end
        end
      end
    end
    if stays then return {0, 1} end
  end

  if index and last > 0 then
    call('DEL', index .. '//' .. mine)
    for i = first, last do redis.pcall('ZREM', index, string.match(keys[i], '%d+$')) end
  end

  local found, held, fresh = 0, 0, true
  for i = first, last do
    local record = read(i)
    if record and sub(record, 52, 83) == mine then
      found = found + 1
      if record > later then held = held + 1 end
      local as_acquired = byte(record, 43) % 32 == 1
      fresh = fresh and as_acquired
      -- Not for the second time.
      if sub(record, 1, 13) ~= ZEROS then
        if tell or byte(record, 14) ~= 48 or not as_acquired then
          free(keys[i], record)
        else
          -- A lost round found nothing here. Nobody was told its token, and with that as the fence the node
          -- would take what heals the lease that it lost to for late.
          call('DEL', keys[i])
          written[keys[i]] = false
        end
        if not index then
          if tell then redis.pcall('PUBLISH', keys[i], '') end
        else
          local request = string.match(request_of(record), '^[^+]+')
          if request ~= '-' then
            local by_request = index .. '///' .. request
            if redis.pcall('GET', by_request) == mine then call('DEL', by_request) end
          end
        end
      end
    end
  end
  if index and found > 0 and tell then redis.pcall('PUBLISH', index, '') end
  -- Something is missing: a lease that has expired and gone, or one that is still on its way.
  local all = last - first + 1
  if found == 0 or found < all then
    store(ARGV[4] .. 'undone:' .. mine, '', TOMBSTONE)
    tombstones = ARGV[4] .. 'undone'
    if call('PTTL', tombstones) < TOMBSTONE then store(tombstones, '', TOMBSTONE) end
  end
  if held > 0 and not fresh then return {1, 1} end
  return held > 0 and 1 or 0
end

