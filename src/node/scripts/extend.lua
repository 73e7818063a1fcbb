-- Sets the remaining time of a lease that is still held, and carries its token:
-- the second fencing round, extending, proclaiming. All keys or none. Part of batch.lua.
--
-- KEYS  key × n, or the index of a semaphore
-- ARGV  1 lease id   2 token, 16 digits   3 ttl in ms, 'own' (as granted) or 'keep' (as it is)
--       4 new data or ''
--       and where it takes more:  5 a claim: from now on only who names it undoes the grant; or '-'
--       6 '1' = KEYS is an index, under which the lease's slots are looked up
-- Reply {1, remaining, ttl, data, request, slots}; 0 not held (any more); -2
local function extend(k, n, a, m, now, now_us)
  local mine, text, given, claim = ARGV[a], ARGV[a + 1], ARGV[a + 2], m > 4 and ARGV[a + 4] or '-'
  local token = tonumber(text)

  local keys, first, last, index, slots = KEYS, k, k + n - 1, nil, ''
  if m > 5 then
    index = KEYS[k]
    slots = redis.call('GET', index .. '//' .. mine)
    if not slots then return 0 end
    keys, first, last = {}, 1, 0
    for slot in string.gmatch(slots, '%d+') do
      last = last + 1
      keys[last] = index .. '/' .. slot
    end
  end

  local fences = {}
  local expires, own, request, data
  for i = first, last do
    local record = redis.call('GET', keys[i])
    if not record then return 0 end
    local fence, _, ends, lease, ttl, asked, old = parse(record)
    if ends <= now or lease ~= mine then return 0 end
    if fence < token then
      if token > now_us + ARGV[2] then return -2 end
      fences[i] = text
    else
      fences[i] = string.sub(record, 1, 16)
    end
    -- One lease: these are the same under every key.
    expires, own, request, data = ends, ttl, asked, old
  end

  local ttl, remaining = own, expires - now
  if given ~= 'keep' then
    if given ~= 'own' then ttl = tonumber(given) end
    remaining = ttl
  end
  if ARGV[a + 3] ~= '' then data = ARGV[a + 3] end
  local asked = string.match(request, '^[^+]+')
  if claim ~= '-' then request = asked .. '+' .. claim end
  local lease = ' ' .. text .. ' ' .. (now + remaining) .. ' ' .. mine .. ' ' .. ttl .. ' ' .. request .. ' ' .. data
  if index then
    -- Before the records: an index of the wrong type fails here, where nothing is written yet.
    for slot in string.gmatch(slots, '%d+') do redis.call('ZADD', index, now + remaining, slot) end
  end
  for i = first, last do
    redis.call('SET', keys[i], fences[i] .. lease, 'PX', remaining + ARGV[3])
  end
  if index then
    if redis.call('PTTL', index) < remaining then redis.call('PEXPIRE', index, remaining) end
    redis.call('PEXPIRE', index .. '//' .. mine, remaining)
    if asked ~= '-' then redis.call('PEXPIRE', index .. '///' .. asked, remaining) end
  end
  return {1, remaining, ttl, data, request, slots}
end

