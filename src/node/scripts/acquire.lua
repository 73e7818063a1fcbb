-- Grants one lease over all the given keys, or none of them. Part of answer().
--
-- KEYS  key × n, [index of the semaphore]
-- text  what its record shall have from FENCE on: the proposed token first
-- ARGV  where it takes more:  1 request id or '-'   2 '1' = only look, never grant
--       3… slot × n, with an index
-- Reply 1 granted with the proposed token; {1, token} with a higher one;
--       {0, {remaining, ttl, token, fence, lease, same request?, data, slots?}}
--       0 where only looking found nobody; -2; -3
--
-- A semaphore keeps beside its slots' records (index/SLOT): the index, a sorted set of
-- taken slots by expiry; index//LEASE, the slots of a lease; index///REQUEST, its lease.
-- From here on it votes.
if not marked then return -1 end
if op == 65 then
  if tombstones and call('GET', ARGV[4] .. 'undone:' .. sub(text, 26, 57)) then return -3 end
  local proposed = sub(text, 1, 16)
  if proposed > token_max then return -2 end

  local request, last = m > 0 and ARGV[a] or '-', k + n - 1
  local index, by_request
  if m > 2 then
    index, last = KEYS[last], last - 1
    by_request = request ~= '-' and index .. '///' .. request
  end

  -- A retry of a request that holds other slots of this semaphore.
  if by_request then
    local earlier = call('GET', by_request)
    local slots = earlier and earlier ~= sub(text, 26, 57) and call('GET', index .. '//' .. earlier)
    local record = slots and call('GET', index .. '/' .. string.match(slots, '^%d+'))
    if record then
      local fence, token, expires, lease, ttl, _, data = parse(record)
      if expires > now and lease == earlier then
        return {0, {expires - now, ttl, token, fence, lease, 1, data, slots}}
      end
    end
  end

  local token = proposed
  for i = k, last do
    local record = look(i)
    if record then
      local fence, lease = fence_of(record)
      if lease ~= '' then
        if lease ~= sub(text, 26, 57) then
          local held, expires, ttl, asked, data
          fence, held, expires, lease, ttl, asked, data = parse(record)
          local same = asked ~= '-' and string.match(asked, '^[^+]+') == request and 1 or 0
          return {0, {expires - now, ttl, held, fence, lease, same, data}}
        end
        -- The same attempt once more (a duplicated message): it has its answer already,
        -- unless tokens were issued since, which must not be given out twice.
        if byte(record, 43) ~= 60 then fence = digits(fence - 1) end
      end
      if fence >= token then token = digits(fence + 1) end
    elseif last > k or index then
      -- An error where something else is stored there, before anything is written.
      call('GET', KEYS[i])
    end
  end
  if m > 1 and ARGV[a + 1] == '1' then return 0 end

  local ttl, ends, forgotten, longer = life(sub(text, 18, 25))
  if index then
    -- Before the records: an index of the wrong type fails here, where nothing is written yet.
    for i = a + 2, a + m - 1 do call('ZADD', index, ends, ARGV[i]) end
  end
  local rest = token == proposed and text or token .. sub(text, 17)
  for i = k, last do
    local before = look(i)
    if before then
      put(KEYS[i], before, ends, rest, forgotten, longer)
    else
      local record = ends .. ZEROS .. rest
      if not call('SET', KEYS[i], record, 'PXAT', forgotten, 'NX') then
        -- What is stored there is no string, as this error says.
        error(redis.pcall('GET', KEYS[i]))
      end
      written[KEYS[i]] = record
    end
  end
  if index then
    call('ZREMRANGEBYSCORE', index, '-inf', now)
    if call('PTTL', index) < ttl then call('PEXPIRE', index, ttl) end
    local lease = sub(text, 26, 57)
    call('SET', index .. '//' .. lease, table.concat(ARGV, ' ', a + 2, a + m - 1), 'PX', ttl)
    if by_request then call('SET', by_request, lease, 'PX', ttl) end
  end
  if token == proposed then return 1 end
  return {1, tonumber(token)}
end

