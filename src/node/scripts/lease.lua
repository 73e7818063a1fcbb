-- Acquires, extends, releases and heals any number of leases, one call after the other: many requests cost the
-- node one run, one look at the clock, and one at all that is stored.
--
-- KEYS  [marker], then the keys of each call
-- ARGV  1 the expected marker, or '' where the calls are releases that go without, and KEYS has none
--       2 how far a token may be ahead of the clock, µs   3 fence retention, ms
--       then the words of each call: its name, how many keys it has, and what its function takes after `keys`
-- Reply {now, reply × n}. Each reply is a list that begins with a code, as text where it has nothing but integers; or
--       the error of that call: the other calls are as if it had not been. Codes:
--          1  done     0  refused    -1  the marker is not the expected one (§4)
--         -2  the proposed token is too far ahead of this node's clock (§2.4)
--         -3  this lease was released before its acquire arrived (§1.4)
--
-- A semaphore keeps beside its slots' records (INDEX/SLOT): INDEX, a sorted set of taken slots by expiry;
-- INDEX//LEASE, the slots of a lease; INDEX///REQUEST, the lease of a request. The tombstone of a lease is an empty
-- text under KEY//LEASE, where KEY is its first record, or the index.
local call = redis.call
local now, now_us = clock()
local now_text = TIME:format(now)
local token_max = TOKEN:format(math.min(now_us + ARGV[2], 9007199254740991))
local retention = tonumber(ARGV[3])

-- What is taken for the record where there is none.
local EMPTY = '2 0000000000000000 0000000000000 00000000000000000000000000000000\n'

-- What is stored under each key, false where that is nothing, or no string; and whether this node may vote.
local stored, marked = {}, false

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
  return text and read_queue(text, now) or NOBODY
end

-- Stores a queue. It is a hint, so an error of that is none of the call.
local function put_queue(key, queue)
  local text, lapses = write_queue(queue)
  key = key .. '/queue'
  if text == '' then redis.pcall('DEL', key) else redis.pcall('SET', key, text, 'PX', lapses - now) end
  stored[key] = text
end

-- Stores a record whose new lease lets the name go at `free`. Others in it may need the key for longer: then it keeps
-- its life.
local function put(key, record, free, is_alone)
  local ends = free + retention
  if not is_alone then ends = math.max(ends, now + call('PTTL', key)) end
  call('SET', key, record, 'PXAT', time_text(ends))
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

-- The keys of a semaphore's slots, '4 11'.
local function keys_of(index, slots)
  local keys = {}
  for slot in slots:gmatch('%d+') do keys[#keys + 1] = index .. '/' .. slot end
  return keys
end

-- Takes slots in the index. Before their records: an index of the wrong type fails here, where nothing is written.
local function index_slots(index, slots, ends)
  for slot in slots:gmatch('%d+') do call('ZADD', index, ends, slot) end
end

-- Has the semaphore know a lease by its id and by its request.
local function index_lease(index, slots, id, request, ends)
  local life = ends - now
  if call('PTTL', index) < life then call('PEXPIRE', index, life) end
  call('SET', index .. '//' .. id, slots, 'PX', life)
  if request ~= '-' then call('SET', index .. '///' .. request, id, 'PX', life) end
end

-- Where the lease of a request is in a record; nil where it has none that is held.
local function find_request(record, request)
  if request == '-' or not record:find(' ' .. request .. ' ', 66, true) then return nil end
  for at, _, expires in each_lease(record) do
    if expires > now_text and request_of(record, at) == request then return at end
  end
end

-- The answer to a request that the leases of a record keep from being granted: its own, if it has one, or all.
local function refuse(record, request, slots)
  local at = find_request(record, request)
  if not at then
    local shown = show_holders(record, now)
    shown[8], shown[9] = 0, '-'
    return {0, shown}
  end
  local shown = show(record, at, now)
  shown[8], shown[9], shown[10] = 1, read_lease(record, at).params, slots
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
-- line   the lease's line as its record shall have it, but for EXPIRES and perhaps TOKEN, and with the ms from now on
--        for HOLD_UNTIL. With a TTL of 0 it is only looked, never granted
-- slots  of a semaphore: which ones, in the order of their records; or ''
-- limit  of a semaphore: how many permits there are
-- place  where it stands in the queue of servers, or '-'
-- Reply  {1, token}; {0, {holder as record.lua shows it …, same request?, params, slots?}}; {0, ms} free, and kept for
--        so long for another server; {0} where only looking found nobody, or too few permits are left; {-1}; {-2}; {-3}
local function acquire(keys, line, slots, limit, place)
  if not marked then return '-1' end
  if stored[keys[1]] == '' then return '-3' end
  local id, token = line:sub(1, 32), line:sub(52, 67)
  local ttl, hold, delay = line:match('^(%d+) (%d+) (%d+)', 69)
  if token > token_max then return '-2' end

  local index, request, last = nil, nil, #keys
  if slots ~= '' then
    index, request, last = keys[last], request_of(line, 0), last - 1
    -- A retry of a request that holds other slots of this semaphore.
    local earlier = request ~= '-' and call('GET', index .. '///' .. request)
    local its_slots = earlier and earlier ~= id and call('GET', index .. '//' .. earlier)
    local record = its_slots and its_slots ~= '' and fetch(keys_of(index, its_slots)[1])
    if record and find_request(record, request) then return refuse(record, request, its_slots) end
  end

  -- How many shared leases a name has at most, and how long its record may get, bytes: each call reads and writes it.
  local shared_max, record_max = 1000, 262144
  local first, shared = index and #keys or 2, line:sub(50, 50) == 's'
  place = read_place(place, now)
  local heads, others, own = {}, {}, false
  for i = 2, last do
    local record = fetch(keys[i])
    local fence, head, is_same = record:sub(3, 18), record:sub(19, 66), false
    if #record > 66 then
      request = request or request_of(line, 0)
      local freed, beside = '', {}
      local may_share = shared and ttl ~= '0' and #record < record_max and not find_request(record, request)
      for at, other, expires in each_lease(record) do
        local held = expires > now_text
        if other == id then
          -- It was given back to this node meanwhile. Or the same attempt comes once more (a duplicated message): it
          -- has its answer already, unless tokens were issued since, which must not be given out twice.
          if record:sub(at + 48, at + 48) ~= 'a' then return '-3' end
          own, is_same = held, held and record:sub(at + 52, at + 67) == fence
        else
          local free = held and expires or taken_until(record, at, expires)
          if free <= now_text then
            freed = free > freed and free or freed
          elseif may_share and record:sub(at + 50, at + 50) == 's' and #beside + 1 < shared_max then
            beside[#beside + 1] = record:match('^[^\n]+\n', at + 1)
          else
            stand_in_line(keys, first, place)
            return refuse(record, request)
          end
        end
      end
      -- Who wants the name for itself, and has waited for longer, is not overtaken.
      if #beside > 0 and not own and is_wanted_alone(queue_of(keys[i]), place) then
        stand_in_line(keys, first, place)
        return refuse(record, request)
      end
      others[i] = table.concat(beside)
      if freed ~= '' then head = ' ' .. freed .. record:sub(33, 66) end
    end
    if is_same and token < fence then
      token = fence
    elseif token <= fence and not is_same then
      token = TOKEN:format(fence + 1)
    end
    heads[i] = head
  end
  -- Permits of a higher limit count, too.
  local is_full = index and not own and call('ZCOUNT', index, now + 1, '+inf') + last - 1 > tonumber(limit)
  if is_full or ttl == '0' then
    stand_in_line(keys, first, place)
    return '0'
  end
  local queues, slot, kept = {}, index and tonumber(slots:match('^%d+')) or 0, now
  for i = first, #keys do
    queues[i] = queue_of(keys[i])
    if #queues[i] > 0 and not own and (others[i] or '') == '' then
      local freed = 0
      for j = 2, last do freed = math.max(freed, heads[j]:sub(2, 14)) end
      kept = math.max(kept, kept_until(queues[i], place, math.min(freed, now), slot, shared))
    end
  end
  if kept > now then
    stand_in_line(keys, first, place)
    return '0 ' .. kept - now
  end

  local ends, rest = now + ttl, line:sub(69 + #ttl)
  if hold ~= '0' then rest = ' ' .. time_text(now + hold) .. rest:sub(2 + #hold) end
  line = id .. ' ' .. time_text(ends) .. line:sub(47, 51) .. token .. ' ' .. ttl .. rest .. '\n'
  local free = ends + delay
  if index then index_slots(index, slots, free) end
  for i = 2, last do
    local beside = others[i] or ''
    put(keys[i], '2 ' .. token .. heads[i] .. beside .. line, free, beside == '')
  end
  if index then
    call('ZREMRANGEBYSCORE', index, '-inf', now)
    index_lease(index, slots, id, request, free)
  end
  for i = first, #keys do
    if #queues[i] > 0 or place.after then put_queue(keys[i], pass(queues[i], place, slot, shared)) end
  end
  return '1 ' .. token
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
-- Reply  {1, remaining, ttl, mark, version, request, params, data, slots, ends sooner now?, ms to HOLD_UNTIL or 0,
--        LOCK_DELAY, was at HOLD_UNTIL already?, MODE}; {0} not held (any more), or to be raised to, or joined with, a token
--        that may have been issued here meanwhile, or raised or joined with another token; {0, 1} over, since it was
--        held for as long as it may be; {-1}; {-2}
local function extend(keys, id, token, life, joins, by, version, data)
  if not marked then return '-1' end
  local carries = token ~= '0000000000000000'
  local raises = carries and (joins == '1' or life == 'raise')
  local index, slots = by == 'slots' and keys[1], ''
  if index then
    slots = call('GET', index .. '//' .. id)
    if not slots or slots == '' then return '0' end
    keys = keys_of(index, slots)
  end

  local heads, others, before, mark, lease = {}, {}, nil, nil, nil
  for i, key in ipairs(keys) do
    local record = fetch(key)
    local at, fence = find_lease(record, id), record:sub(3, 18)
    if not at then return '0' end
    -- One lease: what it says is the same under every key.
    before, mark, lease = record:sub(at + 34, at + 46), record:sub(at + 48, at + 48), read_lease(record, at)
    if before <= now_text then return lease.hold_until == before and '0 1' or '0' end
    if raises then
      -- A lease has one token: that of the attempt which raised it, or of the retry which joined with it. And
      -- every token is new to a node once: of two quorums with the same one, one node would count twice.
      -- Shared leases are let in beside one another, and may have the same.
      if lease.token > token then return '0' end
      if lease.token < token and fence >= token and lease.mode == 'x' then return '0' end
      if mark == 'j' and (life == 'raise' or lease.token < token) then return '0' end
    end
    if token > fence then
      if token > token_max then return '-2' end
      fence = token
    end
    heads[i], others[i] = '2 ' .. fence .. record:sub(19, 66), others_than(record, at)
  end

  before = tonumber(before)
  local ends = before
  local ttl = (life == 'own' or life == 'raise' or life == 'keep') and lease.ttl or life
  if life ~= 'keep' then ends = now + ttl end
  local limit, at_limit = tonumber(lease.hold_until), false
  if limit > 0 and ends > limit then ends, at_limit = limit, before == limit end
  if not at_limit then lease.ttl = ttl end
  if carries then lease.token = token end
  if joins == '1' then mark = 'j' elseif mark == 'a' then mark = 'e' end
  if tonumber(version) > tonumber(lease.version) then lease.version, lease.data = version, data end
  local free = ends + lease.delay
  if index then index_slots(index, slots, free) end
  local line = write_lease(id, ends, mark, lease)
  for i, key in ipairs(keys) do put(key, heads[i] .. line .. others[i], free, #others[i] == 1) end
  if index then index_lease(index, slots, id, lease.request, free) end
  return {
    1, ends - now, lease.ttl, mark, lease.version, lease.request, lease.params, lease.data, slots,
    ends < before and 1 or 0, limit > 0 and limit - now or 0, lease.delay, at_limit and 1 or 0,
    lease.mode,
  }
end

-- Takes a lease away wherever it is held here, and makes sure that it stays away: where the acquire has not arrived
-- yet, or may come after a copy that was given back to this node, a tombstone meets it (§1.4). Needs no marker, since
-- forgetting is always safe; but only with the right one does "not held" say that it was not (§1.8).
--
-- keys   record × n, or the index of a semaphore, as `by` says
-- why    'release'  somebody asked for it
--        'undo'     nobody was told that it was granted, or who was has left: a lease that a retry joined stays
--        'lost'     the same of a round that was lost, silently, or its own undo would wake the contender that lost
--                   it; and where it found nothing it leaves no fence
--        'over'     no quorum holds it any more: what is left of it goes
--        'bar'      where it is held it stays; where it is not, it shall not come
-- Reply  {1, extended?} it was held, or a part of it; {0, 0} it was not (any more); {0, 1} it is, and stays; {0, 2} it
--        is not held here, but this node may have forgotten it
local function release(keys, id, why, by)
  -- How long a tombstone waits, ms: it and the acquire that it overtook sit in the same stalled node and run within
  -- moments of each other.
  local tombstone = 60000
  local index, named = by == 'slots' and keys[1], keys[1]
  if index then
    local slots = redis.pcall('GET', index .. '//' .. id)
    keys = type(slots) == 'string' and keys_of(index, slots) or {}
  end

  local records, found, held, kept, extended, may_come, request = {}, 0, false, false, false, false, '-'
  for i = 1, #keys do
    local record = peek(keys[i])
    local at = record and find_lease(record, id)
    if at then
      local mark, expires = record:sub(at + 48, at + 48), record:sub(at + 34, at + 46)
      if expires > now_text then
        if why == 'bar' or mark == 'j' and (why == 'undo' or why == 'lost') then return '0 1' end
        held = true
      elseif taken_until(record, at, expires) > now_text then
        -- Only its holder's own word frees what has expired and is kept.
        if why ~= 'release' then
          -- Of a semaphore that text says which slots it has, which its holder's own word must find.
          if not index then force(named .. '//' .. id, '', tombstone) end
          return marked and '0 0' or '0 2'
        end
        kept = true
      end
      extended, may_come = extended or mark ~= 'a', may_come or mark == 'h' or mark == 'j'
      if index then request = request_of(record, at) end
      local others, head = others_than(record, at), record:sub(1, 19) .. now_text
      if why ~= 'lost' then
        records[i] = head .. ' ' .. id .. others
      elseif mark == 'a' and #others == 1 and record:sub(20, 32) == EMPTY:sub(20, 32)
        and record:sub(at + 52, at + 67) == record:sub(3, 18) then
        -- Nobody was told its token, and with that as the fence the node would take what heals the lease that it
        -- lost to for late.
        records[i] = EMPTY
      else
        records[i] = head .. record:sub(33, 65) .. others
      end
    end
    if at or record and record:sub(34, 65) == id then found = found + 1 end
  end

  if index then
    for _, key in ipairs(keys) do redis.pcall('ZREM', index, key:match('%d+$')) end
    if #keys > 0 then call('DEL', index .. '//' .. id) end
    local by_request = index .. '///' .. request
    if request ~= '-' and redis.pcall('GET', by_request) == id then call('DEL', by_request) end
  end
  local freed = (held or kept) and why ~= 'lost'
  for i, key in ipairs(keys) do
    if records[i] == EMPTY then
      call('DEL', key)
      stored[key] = false
    elseif records[i] then
      force(key, records[i])
    end
    if freed and not index then redis.pcall('PUBLISH', key, first_of(queue_of(key), 1)) end
  end
  if freed and index then redis.pcall('PUBLISH', index, first_of(queue_of(index), #keys)) end
  -- Something is missing: a lease that has expired and gone, or one that is still on its way.
  if may_come or found == 0 or found < #keys then force(named .. '//' .. id, '', tombstone) end
  return held and (extended and '1 1' or '1 0') or marked and '0 0' or '0 2'
end

-- Gives a lease back to a node that does not have it (§1.7). Where the members changed and fewer than a quorum hold
-- the lease, the caller counts the copies that were taken; otherwise nobody waits for the answer.
--
-- keys, slots  as of acquire; the line says 'h' or 'j'
-- line         the lease's line as its record shall have it
-- Reply  {1} healed; {0} over, or somebody else's, or a later token is known, or this lease was released here;
--        {-1}; {-2}; {-3}
local function heal(keys, line, slots)
  if not marked then return '-1' end
  if stored[keys[1]] == '' then return '-3' end
  local id, ends, mark, lease = line:sub(1, 32), line:sub(34, 46), line:sub(48, 48), read_lease(line, 0)
  if lease.token > token_max then return '-2' end
  if ends <= now_text then return '0' end
  local index, last = nil, #keys
  if slots ~= '' then index, last = keys[last], last - 1 end

  local heads, others = {}, {}
  for i = 2, last do
    local record = fetch(keys[i])
    local fence, here, beside = record:sub(3, 18), false, {}
    for at, other, expires in each_lease(record) do
      if expires > now_text and other ~= id then
        if lease.mode == 'x' or record:sub(at + 50, at + 50) == 'x' then return '0' end
        beside[#beside + 1] = record:match('^[^\n]+\n', at + 1)
      elseif expires > now_text then
        -- Held here, but not whole: another key of it was lost, or its place in the index. What is left is never
        -- shortened, and keeps the tokens that were issued since and the later data.
        here, ends = true, expires > ends and expires or ends
        if record:sub(at + 48, at + 48) == 'j' then mark = 'j' end
        local mine = read_lease(record, at)
        if tonumber(mine.version) > tonumber(lease.version) then
          lease.version, lease.data = mine.version, mine.data
        end
      end
    end
    if not here and (fence > lease.token or record:sub(34, 65) == id) then
      -- A later lease has been here and is gone, or this one was released, perhaps with a lower token than the
      -- others have: what was sent to heal it is late. Which of them it was cannot be told any more once a
      -- contender has raised the fence, so nothing is healed then. (One that lost, and found nothing here, has
      -- left nothing.)
      return '0'
    end
    if fence < lease.token then fence = lease.token end
    heads[i], others[i] = '2 ' .. fence .. record:sub(19, 66), table.concat(beside)
  end

  ends = tonumber(ends)
  local free = ends + lease.delay
  if index then index_slots(index, slots, free) end
  line = write_lease(id, ends, mark, lease) .. '\n'
  for i = 2, last do put(keys[i], heads[i] .. others[i] .. line, free, others[i] == '') end
  if index then index_lease(index, slots, id, lease.request, free) end
  return '1'
end

-- What each call runs, and how many words that takes.
local functions = {acquire = acquire, extend = extend, release = release, heal = heal}
local words = {acquire = 4, extend = 7, release = 3, heal = 2}

-- The keys of each call; and all that the calls look at: most acquires and releases are of one name, or of one
-- semaphore, whose queue is beside its last key.
local keys_of_calls, wanted, k, a = {}, {}, 0, 4
if ARGV[1] ~= '' then k, wanted[1] = 1, KEYS[1] end
while ARGV[a] do
  local name, keys = ARGV[a], {}
  for i = 1, tonumber(ARGV[a + 1]) do
    k = k + 1
    keys[i], wanted[#wanted + 1] = KEYS[k], KEYS[k]
  end
  if name == 'acquire' or name == 'release' then wanted[#wanted + 1] = KEYS[k] .. '/queue' end
  keys_of_calls[#keys_of_calls + 1] = keys
  a = a + 2 + words[name]
end
-- Lua has no room for very many values at once.
for first = 1, #wanted, 1000 do
  local texts = call('MGET', unpack(wanted, first, math.min(first + 999, #wanted)))
  for i = 1, #texts do stored[wanted[first + i - 1]] = texts[i] end
end
marked = ARGV[1] ~= '' and stored[KEYS[1]] == ARGV[1]

local replies = {now}
a = 4
for i, keys in ipairs(keys_of_calls) do
  local name = ARGV[a]
  local answered, reply = pcall(functions[name], keys, unpack(ARGV, a + 2, a + 1 + words[name]))
  if not answered then
    -- What a command answered has a code in front, what Lua says has not. Redis 6 says where, too.
    reply = tostring(type(reply) == 'table' and reply.err or reply)
    reply = reply:match('^@user_script: %d+: %-(.*)$') or reply
    reply = {err = reply:find('^%u+ ') and reply or 'ERR ' .. reply}
  end
  replies[i + 1] = reply
  a = a + 2 + words[name]
end
return replies
