-- Acquires, extends, releases and heals any number of leases, one call after the other: many requests cost the
-- node one run, one look at the clock, and one at all that is stored.
--
-- KEYS  [marker], then the keys of each call
-- ARGV  1 the expected marker, or '' where all calls are releases, and KEYS has none
--       2 how far a token may be ahead of the clock, µs   3 fence retention, ms
--       then the words of each call: its name, how many keys it has, and what its function takes after `keys`
-- Reply {now, reply × n}. Each reply is a list that begins with a code, or the error of that call; the other calls
--       are as if it had not been. Codes:
--          1  done     0  refused    -1  the marker is not the expected one (§4)
--         -2  the proposed token is too far ahead of this node's clock (§2.4)
--         -3  this lease was released before its acquire arrived (§1.4)
--
-- A semaphore keeps beside its slots' records (INDEX/SLOT): INDEX, a sorted set of taken slots by expiry;
-- INDEX//LEASE, the slots of a lease; INDEX///REQUEST, the lease of a request. The tombstone of a lease is an empty text
-- under KEY//LEASE, where KEY is its first record, or the index.
local call = redis.call
local now, now_us = clock()
local token_max = math.min(now_us + ARGV[2], 9007199254740991)
local retention = tonumber(ARGV[3])

local now_text = format(TIME, now)

-- How long a tombstone waits, ms: it and the acquire that it overtook sit in the same stalled node and run within
-- moments of each other.
local TOMBSTONE = 60000
-- What is taken for the record where there is none.
local EMPTY = '2 0000000000000000 0000000000000 00000000000000000000000000000000\n'

-- What is stored under each key, false where that is nothing, or no string. Lua has no room for very many at once.
local stored = {}
for first = 1, #KEYS, 1000 do
  local last = math.min(first + 999, #KEYS)
  for i, text in ipairs(call('MGET', unpack(KEYS, first, last))) do stored[KEYS[first + i - 1]] = text end
end
-- Whether this node may vote.
local marked = ARGV[1] ~= '' and stored[KEYS[1]] == ARGV[1]

-- The record under a key; an error where something else is stored there.
local function fetch(key)
  local text = stored[key] or call('GET', key)
  local record = text and read_record(text)
  if text and not record then error('not a lease record') end
  return record or EMPTY
end

-- The same where nothing may end the call; nil where something else is stored there.
local function peek(key)
  local text = stored[key] or redis.pcall('GET', key)
  if not text then return EMPTY end
  return type(text) == 'string' and read_record(text) or nil
end

-- The queue of the servers that wait for a record, or for slots in an index.
local function queue_of(key)
  local text = stored[key .. '/queue']
  if text == nil then text = redis.pcall('GET', key .. '/queue') end
  return read_queue(text, now)
end

-- Stores a queue. It is a hint, so an error of that is none of the call.
local function put_queue(key, queue)
  local text, lapses = write_queue(queue)
  key = key .. '/queue'
  if text == '' then redis.pcall('DEL', key) else redis.pcall('SET', key, text, 'PX', lapses - now) end
  stored[key] = text
end

-- Stores a record whose last lease ends then.
local function put(key, record, ends)
  call('SET', key, record, 'PXAT', format(TIME, ends + retention))
  stored[key] = record
end

-- Stores `text` for `life` ms, or for as long as what is there. Out of memory, Redis refuses the first SET of a
-- script but never a DEL, and after a DEL it lets the SET pass.
local function force(key, text, life)
  local done
  if life then
    done = redis.pcall('SET', key, text, 'PX', life)
  else
    done = redis.pcall('SET', key, text, 'KEEPTTL')
  end
  if done.err then
    life = life or math.max(call('PTTL', key), 1)
    call('DEL', key)
    call('SET', key, text, 'PX', life)
  end
  stored[key] = text
end

-- Where the line break before the lease of this id is, whether or not that is over; nil where there is none.
local function find_lease(record, id)
  return find(record, '\n' .. id, 66, true)
end

-- The lines of a record without the one at that place, with the line break before them.
local function others_than(record, at)
  return sub(record, 66, at - 1) .. sub(record, find(record, '\n', at + 1, true) or -1)
end

-- The keys of a semaphore's slots, '4 11'.
local function keys_of(index, slots)
  local keys = {}
  for slot in gmatch(slots, '%d+') do keys[#keys + 1] = index .. '/' .. slot end
  return keys
end

-- Takes slots in the index. Before their records: an index of the wrong type fails here, where nothing is written.
local function index_slots(index, slots, ends)
  for slot in gmatch(slots, '%d+') do call('ZADD', index, ends, slot) end
end

-- Has the semaphore know a lease by its id and by its request.
local function index_lease(index, slots, id, request, ends)
  local life = ends - now
  if call('PTTL', index) < life then call('PEXPIRE', index, life) end
  call('SET', index .. '//' .. id, slots, 'PX', life)
  if request ~= '-' then call('SET', index .. '///' .. request, id, 'PX', life) end
end

-- The answer to a request that this lease keeps from being granted.
local function refuse(record, at, id, expires, request, slots)
  local lease = read_lease(record, at)
  local shown = show(id, expires, lease, now)
  shown[7], shown[8], shown[9] = request ~= '-' and lease.request == request and 1 or 0, lease.params, slots
  return {0, shown}
end

-- Who waits, and is refused, stands in the queue of each name, or of the semaphore, from now on: of the keys from the
-- `first` on.
local function stand_in_line(keys, first, place)
  if place.entry then
    for i = first, #keys do put_queue(keys[i], stand(queue_of(keys[i]), place)) end
  end
end

-- Grants one lease over all the given keys, or none of them.
--
-- keys   tombstone of the lease, record × n, [index of the semaphore]
-- line   the lease's line as its record shall have it, but for EXPIRES and perhaps TOKEN. With a TTL of 0 it is only
--        looked, never granted
-- slots  of a semaphore: which ones, in the order of their records; or ''
-- limit  of a semaphore: how many permits there are
-- place  where it stands in the queue of servers, or '-'
-- Reply  {1, token}; {0, {remaining, ttl, token, lease, version, data, same request?, params, slots?}};
--        {0, ms} free, and kept for so long for another server; {0} where only looking found nobody, or too few permits
--        are left; {-1}; {-2}; {-3}
local function acquire(keys, line, slots, limit, place)
  if not marked then return {-1} end
  if stored[keys[1]] == '' then return {-3} end
  local id, proposed, ttl = sub(line, 1, 32), sub(line, 52, 67), match(line, '^%d+', 69)
  local token = tonumber(proposed)
  if token > token_max then return {-2} end

  local index, request, last = nil, nil, #keys
  if slots ~= '' then
    index, request, last = keys[last], read_lease(line, 0).request, last - 1
    -- A retry of a request that holds other slots of this semaphore.
    local earlier = request ~= '-' and call('GET', index .. '///' .. request)
    local its_slots = earlier and earlier ~= id and call('GET', index .. '//' .. earlier)
    local record = its_slots and its_slots ~= '' and fetch(keys_of(index, its_slots)[1])
    local at = record and find_lease(record, earlier)
    local expires = at and sub(record, at + 34, at + 46)
    if at and tonumber(expires) > now then return refuse(record, at, earlier, expires, request, its_slots) end
  end

  local first = index and #keys or 2
  place = read_place(place, now)
  local heads, free_since, own = {}, 0, false
  for i = 2, last do
    local record = fetch(keys[i])
    local least, freed = sub(record, 3, 18) + 1, sub(record, 20, 32)
    if #record > 66 then
      for at, other, expires in each_lease(record) do
        local held = tonumber(expires) > now
        if other == id then
          -- It was given back to this node meanwhile. Or the same attempt comes once more (a duplicated message): it
          -- has its answer already, unless tokens were issued since, which must not be given out twice.
          if sub(record, at + 48, at + 48) ~= 'a' then return {-3} end
          if held and sub(record, at + 52, at + 67) == sub(record, 3, 18) then least = least - 1 end
          own = held
        elseif held then
          stand_in_line(keys, first, place)
          return refuse(record, at, other, expires, request or read_lease(line, 0).request)
        else
          freed = expires
        end
      end
    end
    if least > token then token, proposed = least, format(TOKEN, least) end
    heads[i], free_since = freed .. sub(record, 33, 66), math.max(free_since, freed)
  end
  -- Permits of a higher limit count, too.
  local is_full = index and not own and call('ZCOUNT', index, now + 1, '+inf') + last - 1 > tonumber(limit)
  if is_full or ttl == '0' then
    stand_in_line(keys, first, place)
    return {0}
  end
  local queues, slot, kept = {}, tonumber(match(slots, '^%d+')) or 0, now
  for i = first, #keys do
    queues[i] = queue_of(keys[i])
    if not own then kept = math.max(kept, kept_until(queues[i], place, math.min(free_since, now), slot)) end
  end
  if kept > now then
    stand_in_line(keys, first, place)
    return {0, kept - now}
  end

  local ends = now + ttl
  if index then index_slots(index, slots, ends) end
  line = id .. ' ' .. format(TIME, ends) .. sub(line, 47, 51) .. proposed .. sub(line, 68) .. '\n'
  for i = 2, last do put(keys[i], '2 ' .. proposed .. ' ' .. heads[i] .. line, ends) end
  if index then
    call('ZREMRANGEBYSCORE', index, '-inf', now)
    index_lease(index, slots, id, request, ends)
  end
  for i, queue in pairs(queues) do
    if #queue > 0 or place.after then put_queue(keys[i], pass(queue, place, slot)) end
  end
  return {1, token}
end

-- Sets the remaining time of a lease that is still held, and carries its token: the second fencing round,
-- extending, proclaiming, giving a copy what it missed. All keys or none.
--
-- keys   record × n, or the index of a semaphore, under which the lease's slots are looked up
-- token  16 digits; zeros = as it is
-- life   ms, or 'own' (as granted) or 'keep' (as it is) or 'raise' (as granted, and the token is new)
-- joins  '1' = a retry of its request has it too from now on (§1.9)
-- by     'records' or 'slots'
-- version, data  replace what is stored of an earlier version; '0' and '' = none
-- Reply  {1, remaining, ttl, mark, version, request, params, data, slots, ends sooner now?}; {0} not held (any
--        more), or to be raised to, or joined with, a token that may have been issued here meanwhile, or raised or
--        joined with another token; {-1}; {-2}
local function extend(keys, id, token, life, joins, by, version, data)
  if not marked then return {-1} end
  local carried = tonumber(token)
  local raises = carried > 0 and (joins == '1' or life == 'raise')
  local index, slots = by == 'slots' and keys[1], ''
  if index then
    slots = call('GET', index .. '//' .. id)
    if not slots or slots == '' then return {0} end
    keys = keys_of(index, slots)
  end

  local heads, others, before, mark, lease = {}, {}, nil, nil, nil
  for i, key in ipairs(keys) do
    local record = fetch(key)
    local at, fence = find_lease(record, id), sub(record, 3, 18)
    if not at then return {0} end
    -- One lease: what it says is the same under every key.
    before, mark, lease = tonumber(sub(record, at + 34, at + 46)), sub(record, at + 48, at + 48), read_lease(record, at)
    if before <= now then return {0} end
    local own, known = tonumber(lease.token), tonumber(fence)
    if raises then
      -- A lease has one token: that of the attempt which raised it, or of the retry which joined with it. And
      -- every token is new to a node once: of two quorums with the same one, one node would count twice.
      if own > carried or own < carried and known >= carried then return {0} end
      if mark == 'j' and (life == 'raise' or own < carried) then return {0} end
    end
    if carried > known then
      if carried > token_max then return {-2} end
      fence = token
    end
    heads[i], others[i] = '2 ' .. fence .. sub(record, 19, 66), others_than(record, at)
  end

  local ends = before
  if life ~= 'own' and life ~= 'raise' and life ~= 'keep' then lease.ttl = life end
  if life ~= 'keep' then ends = now + lease.ttl end
  if carried > 0 then lease.token = token end
  if joins == '1' then mark = 'j' elseif mark == 'a' then mark = 'e' end
  if tonumber(version) > tonumber(lease.version) then lease.version, lease.data = version, data end
  if index then index_slots(index, slots, ends) end
  local line = write_lease(id, ends, mark, lease)
  for i, key in ipairs(keys) do put(key, heads[i] .. line .. others[i], ends) end
  if index then index_lease(index, slots, id, lease.request, ends) end
  return {
    1, ends - now, tonumber(lease.ttl), mark, tonumber(lease.version), lease.request, lease.params, lease.data, slots,
    ends < before and 1 or 0,
  }
end

-- Takes a lease away wherever it is held here, and makes sure that it stays away: where the acquire has not arrived
-- yet, or may come after a copy that was given back to this node, a tombstone meets it (§1.4). Needs no marker, since
-- forgetting is always safe.
--
-- keys   record × n, or the index of a semaphore, as `by` says
-- why    'release'  somebody asked for it
--        'undo'     nobody was told that it was granted, or who was has left: a lease that a retry joined stays
--        'lost'     the same of a round that was lost, silently, or its own undo would wake the contender that lost
--                   it; and where it found nothing it leaves no fence
--        'bar'      where it is held it stays; where it is not, it shall not come
-- Reply  {1, extended?} it was held, or a part of it; {0, 0} it was not (any more); {0, 1} it is, and stays
local function release(keys, id, why, by)
  local index, by_lease = by == 'slots' and keys[1], keys[1] .. '//' .. id
  if index then
    local slots = redis.pcall('GET', by_lease)
    keys = type(slots) == 'string' and keys_of(index, slots) or {}
  end

  local records, found, held, extended, may_come, request = {}, 0, false, false, false, '-'
  for i, key in ipairs(keys) do
    local record = peek(key)
    local at = record and find_lease(record, id)
    if at then
      local mark = sub(record, at + 48, at + 48)
      if (tonumber(sub(record, at + 34, at + 46)) or 0) > now then
        if why == 'bar' or mark == 'j' and why ~= 'release' then return {0, 1} end
        held = true
      end
      extended, may_come = extended or mark ~= 'a', may_come or mark == 'h' or mark == 'j'
      if index then request = read_lease(record, at).request end
      local others, freed = others_than(record, at), sub(record, 1, 19) .. now_text
      if why ~= 'lost' then
        records[i] = freed .. ' ' .. id .. others
      elseif mark == 'a' and #others == 1 and sub(record, 20, 32) == sub(EMPTY, 20, 32)
        and sub(record, at + 52, at + 67) == sub(record, 3, 18) then
        -- Nobody was told its token, and with that as the fence the node would take what heals the lease that it
        -- lost to for late.
        records[i] = EMPTY
      else
        records[i] = freed .. sub(record, 33, 65) .. others
      end
    end
    if at or record and sub(record, 34, 65) == id then found = found + 1 end
  end

  if index then
    for _, key in ipairs(keys) do redis.pcall('ZREM', index, match(key, '%d+$')) end
    if #keys > 0 then call('DEL', by_lease) end
    local by_request = index .. '///' .. request
    if request ~= '-' and redis.pcall('GET', by_request) == id then call('DEL', by_request) end
  end
  for i, key in ipairs(keys) do
    if records[i] == EMPTY then
      call('DEL', key)
      stored[key] = false
    elseif records[i] then
      force(key, records[i])
    end
    if held and not index and why ~= 'lost' then redis.pcall('PUBLISH', key, first_of(queue_of(key), 1)) end
  end
  if held and index and why ~= 'lost' then redis.pcall('PUBLISH', index, first_of(queue_of(index), #keys)) end
  -- Something is missing: a lease that has expired and gone, or one that is still on its way.
  if may_come or found == 0 or found < #keys then force(by_lease, '', TOMBSTONE) end
  return {held and 1 or 0, held and extended and 1 or 0}
end

-- Gives a lease back to a node that lost it, after a quorum has matched it (§1.7). Never a vote: the caller does
-- not count the answer.
--
-- keys, slots  as of acquire; the line says 'h' or 'j'
-- line         the lease's line as its record shall have it
-- Reply  {1} healed; {0} over, or somebody else's, or a later token is known, or this lease was released here;
--        {-1}; {-2}; {-3}
local function heal(keys, line, slots)
  if not marked then return {-1} end
  if stored[keys[1]] == '' then return {-3} end
  local id, ends, mark, lease = sub(line, 1, 32), tonumber(sub(line, 34, 46)), sub(line, 48, 48), read_lease(line, 0)
  local token = tonumber(lease.token)
  if token > token_max then return {-2} end
  if ends <= now then return {0} end
  local index, last = nil, #keys
  if slots ~= '' then index, last = keys[last], last - 1 end

  local heads = {}
  for i = 2, last do
    local record = fetch(keys[i])
    local fence, here = sub(record, 3, 18), false
    for at, other, expires in each_lease(record) do
      if tonumber(expires) > now then
        if other ~= id then return {0} end
        -- Held here, but not whole: another key of it was lost, or its place in the index. What is left is never
        -- shortened, and keeps the tokens that were issued since and the later data.
        here, ends = true, math.max(ends, expires)
        if sub(record, at + 48, at + 48) == 'j' then mark = 'j' end
        local mine = read_lease(record, at)
        if tonumber(mine.version) > tonumber(lease.version) then
          lease.version, lease.data = mine.version, mine.data
        end
      end
    end
    if not here and (tonumber(fence) > token or sub(record, 34, 65) == id) then
      -- A later lease has been here and is gone, or this one was released, perhaps with a lower token than the
      -- others have: what was sent to heal it is late. Which of them it was cannot be told any more once a
      -- contender has raised the fence, so nothing is healed then. (One that lost, and found nothing here, has
      -- left nothing.)
      return {0}
    end
    if tonumber(fence) < token then fence = lease.token end
    heads[i] = '2 ' .. fence .. sub(record, 19, 66)
  end

  if index then index_slots(index, slots, ends) end
  line = write_lease(id, ends, mark, lease) .. '\n'
  for i = 2, last do put(keys[i], heads[i] .. line, ends) end
  if index then index_lease(index, slots, id, lease.request, ends) end
  return {1}
end

-- What each call runs, and how many words that takes.
local functions = {acquire = acquire, extend = extend, release = release, heal = heal}
local words = {acquire = 4, extend = 7, release = 3, heal = 2}

local replies, k, a = {now}, ARGV[1] ~= '' and 2 or 1, 4
while a <= #ARGV do
  local name, keys = ARGV[a], {}
  for i = 1, tonumber(ARGV[a + 1]) do
    keys[i] = KEYS[k]
    k = k + 1
  end
  local answered, reply = pcall(functions[name], keys, unpack(ARGV, a + 2, a + 1 + words[name]))
  if not answered then
    -- What a command answered has a code in front, what Lua says has not. Redis 6 says where, too.
    reply = tostring(type(reply) == 'table' and reply.err or reply)
    reply = match(reply, '^@user_script: %d+: %-(.*)$') or reply
    reply = {err = find(reply, '^%u+ ') and reply or 'ERR ' .. reply}
  end
  replies[#replies + 1] = reply
  a = a + 2 + words[name]
end
return replies
