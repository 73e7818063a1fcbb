-- Grants one lease over all the given keys, or none of them. Part of batch.lua.
--
-- KEYS  tombstone of the lease, key × n, [index of the semaphore]
-- ARGV  1 proposed token, 16 digits   2 ttl, ms   3 LEASE TTL REQUEST DATA, as its record ends
--       and where it takes more:  4 request id or '-'   5 '1' = only look, never grant
--       6… slot × n, with an index
-- Reply 1 granted with the proposed token; {1, token} with a higher one;
--       {0, {remaining, ttl, token, fence, lease, same request?, data, slots?}}
--       0 where only looking found nobody; -2; -3
--
-- A semaphore keeps beside its slots' records (index/SLOT): the index, a sorted set of
-- taken slots by expiry; index//LEASE, the slots of a lease; index///REQUEST, its lease.
local function acquire(k, n, a, m, now, now_us)
  if redis.call('GET', KEYS[k]) then return -3 end
  local proposed = tonumber(ARGV[a])
  if proposed > now_us + ARGV[2] then return -2 end

  local request, last = m > 3 and ARGV[a + 3] or '-', k + n - 1
  local index, by_request
  if m > 5 then
    index, last = KEYS[last], last - 1
    by_request = request ~= '-' and index .. '///' .. request
  end

  -- A retry of a request that holds other slots of this semaphore.
  if by_request then
    local earlier = redis.call('GET', by_request)
    local slots = earlier and earlier ~= string.sub(ARGV[a + 2], 1, 32) and redis.call('GET', index .. '//' .. earlier)
    local record = slots and redis.call('GET', index .. '/' .. string.match(slots, '^%d+'))
    if record then
      local fence, token, expires, lease, ttl, _, data = parse(record)
      if expires > now and lease == earlier then
        return {0, {expires - now, ttl, token, fence, lease, 1, data, slots}}
      end
    end
  end

  local token, text = proposed, ARGV[a]
  for i = k + 1, last do
    local record = redis.call('GET', KEYS[i])
    if record then
      local fence, held, expires, lease, ttl, asked, data = parse(record)
      if expires > now then
        if lease ~= string.sub(ARGV[a + 2], 1, 32) then
          local same = asked ~= '-' and string.match(asked, '^[^+]+') == request and 1 or 0
          return {0, {expires - now, ttl, held, fence, lease, same, data}}
        end
        -- The same attempt once more (a duplicated message): it has its answer already,
        -- unless tokens were issued since, which must not be given out twice.
        if fence == held then fence = fence - 1 end
      end
      if fence >= token then
        token = fence + 1
        text = digits(token)
      end
    end
  end
  if m > 4 and ARGV[a + 4] == '1' then return 0 end

  local ttl = tonumber(ARGV[a + 1])
  if index then
    -- Before the records: an index of the wrong type fails here, where nothing is written yet.
    for i = a + 5, a + m - 1 do redis.call('ZADD', index, now + ttl, ARGV[i]) end
  end
  local record = text .. ' ' .. text .. ' ' .. (now + ttl) .. ' ' .. ARGV[a + 2]
  for i = k + 1, last do
    redis.call('SET', KEYS[i], record, 'PX', ttl + ARGV[3])
  end
  if index then
    redis.call('ZREMRANGEBYSCORE', index, '-inf', now)
    if redis.call('PTTL', index) < ttl then redis.call('PEXPIRE', index, ttl) end
    local lease = string.sub(ARGV[a + 2], 1, 32)
    redis.call('SET', index .. '//' .. lease, table.concat(ARGV, ' ', a + 5, a + m - 1), 'PX', ttl)
    if by_request then redis.call('SET', by_request, lease, 'PX', ttl) end
  end
  if token == proposed then return 1 end
  return {1, token}
end

