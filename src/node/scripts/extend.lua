-- Sets the remaining time of a lease that is still held, and carries its token:
-- the second fencing round, extending, proclaiming, giving a copy what it missed. All keys or none.
-- Part of answer().
--
-- KEYS  key × n, or the index of a semaphore
-- text  E   2 token, 16 digits, or zeros (as it is)   18 lease id   50 ttl in ms, 8 digits, or 'own'
--       (as granted) or 'keep' (as it is) or 'raise' (as granted, and the token is new), filled up with
--       spaces   58 new data or ''; what is stored stays where it is of a later edition
-- ARGV  where it takes more:  1 '+' and a claim that joins those which are there, or one before which all
--         have left (§1.9); or '-'
--       2 '1' = KEYS is an index, under which the lease's slots are looked up
-- Reply {1, remaining, ttl, data, request, slots}, and 1 where it ends sooner now; 0 not held (any more),
--       or to be raised to, or claimed with, a token that may have been issued here meanwhile, or raised
--       or claimed with another token; -2
if op == 69 then
  local token, mine, given = sub(text, 2, 17), sub(text, 18, 49), sub(text, 50, 57)
  local claim = m > 0 and ARGV[a] or '-'
  local joins = byte(claim) == 43

  local keys, first, last, index, slots = KEYS, k, k + n - 1, nil, ''
  if m > 1 then
    index = KEYS[k]
    slots = call('GET', index .. '//' .. mine)
    if not slots then return 0 end
    keys, first, last = {}, 1, 0
    for slot in string.gmatch(slots, '%d+') do
      last = last + 1
      keys[last] = index .. '/' .. slot
    end
  end

  local fences, records, record, rises = {}, {}, nil, nil
  for i = first, last do
    if index then record = call('GET', keys[i]) else record = look(i) or call('GET', keys[i]) end
    if not record then return 0 end
    local fence, lease = fence_of(record)
    if lease ~= mine then return 0 end
    if joins or given == 'raise   ' then
      local own = byte(record, 43) == 60 and sub(record, 85, 100) or fence
      -- A lease has one token: that of the attempt which raised it, or of the retry which claimed it.
      if own > token then return 0 end
      -- Every token is new to a node once: of two quorums with the same one, one node would count twice.
      if own < token and fence >= token then return 0 end
      rises = rises or own < token
    end
    if fence < token then
      if token > token_max then return -2 end
      fence = token
    end
    fences[i], records[i] = fence, record
  end

  -- One lease: the rest is the same under every key.
  local _, held, expires, _, own, request, data = parse(record)
  if (given == 'raise   ' or rises) and string.find(request, '+', 1, true) then return 0 end
  if token == '0000000000000000' then token = digits(held) end
  local ttl, remaining, ends, forgotten, longer = own, expires - now, nil, nil, nil
  if given == 'keep    ' then
    _, ends, forgotten, longer = life(remaining)
  elseif given == 'own     ' or given == 'raise   ' then
    remaining, ends, forgotten, longer = life(own)
  else
    ttl, ends, forgotten, longer = life(given)
    remaining = ttl
  end
  if #text > 57 and edition(sub(text, 58)) >= edition(data) then data = sub(text, 58) end
  local asked = string.match(request, '^[^+]+')
  if claim ~= '-' then
    local own, claims = joins and claim or '+' .. claim, string.match(request, '%+.*$') or '+0'
    local from = find(claims .. '+', own .. '+', 1, true)
    if from then
      if not joins then claims = sub(claims, from) end
    elseif joins then
      claims = claims .. own
    else
      -- This one was missed here. In front, so that the same once more drops nobody who came later.
      claims = own .. claims
    end
    -- Of too many, one that never leaves stands for the first.
    if select(2, string.gsub(claims, '%+', '')) > CLAIMS_MAX then
      claims = string.gsub(claims, '^%+%d+%+%d+', '+1')
    end
    request = asked .. claims
  end
  if index then
    -- Before the records: an index of the wrong type fails here, where nothing is written yet.
    for slot in string.gmatch(slots, '%d+') do call('ZADD', index, ends, slot) end
  end
  for i = first, last do
    local rest = fences[i] .. lease_part(fences[i], token, ttl, mine, request, data)
    put(keys[i], records[i], ends, rest, forgotten, longer)
  end
  if index then
    if call('PTTL', index) < remaining then call('PEXPIRE', index, remaining) end
    call('PEXPIRE', index .. '//' .. mine, remaining)
    if asked ~= '-' then call('PEXPIRE', index .. '///' .. asked, remaining) end
  end
  if tonumber(remaining) < expires - now then return {1, remaining, ttl, data, request, slots, 1} end
  return {1, remaining, ttl, data, request, slots}
end

