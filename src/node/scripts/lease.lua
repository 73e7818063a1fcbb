-- Acquires, extends, releases and heals any number of leases, one call after the other: many requests cost the
-- node one run, one look at the clock, and one at all that is stored.
--
-- KEYS  [marker], then the keys of each call
-- ARGV  1 the expected marker, or '' where the calls are releases that go without, and KEYS has none
--       2 how far a token may be ahead of the clock, µs   3 fence retention, ms
--       then two words for each call: how, which most calls of a run have in common, and what. HOW begins with the name
--       of a function and the number of its keys, and goes on as that function says
-- Reply {now, reply × n}. Each reply is a list that begins with a code, as text where it has nothing but integers; or
--       the error of that call: the other calls are as if it had not been. Codes:
--          1  done     0  refused    -1  the marker is not the expected one (§4)
--         -2  the proposed token is too far ahead of this node's clock (§2.4)
--         -3  this lease was released before its acquire arrived (§1.4)
--
-- A semaphore keeps beside its slots' records (INDEX/SLOT): INDEX, a sorted set of taken slots by expiry;
-- INDEX//LEASE, the slots of a lease; INDEX///REQUEST, the lease of a request. The tombstone of a lease is an empty
-- text under KEY//LEASE, and the queue of servers under KEY/queue, where KEY is its first record, or the index. Of a
-- record, BESIDE says until when there may be any of these.
local call, KEYS, ARGV = redis.call, KEYS, ARGV
local now, now_us, now_text = clock()
local token_max = TOKEN:format(math.min(now_us + ARGV[2], 9007199254740991))

-- What is stored under each key, false where that is nothing, or no string. Lua has no room for very many at once.
local stored = {}
for first = 1, #KEYS, 1000 do
  local texts = call('MGET', unpack(KEYS, first, math.min(first + 999, #KEYS)))
  for i = 1, #texts do stored[KEYS[first + i - 1]] = texts[i] end
end
-- Whether this node may vote.
local marked = ARGV[1] ~= '' and stored[KEYS[1]] == ARGV[1]

-- The record under a key, and whether something has lain beside it. Where something else is stored there, an error,
-- or nil if it is read with pcall.
local function fetch(key, run)
  local text = stored[key] or run('GET', key)
  if not text then return EMPTY, false end
  if type(text) == 'string' then
    local record, beside = read_record(text)
    if record then return record, beside end
  end
  if run == call then error('not a lease record') end
end

-- Stores a record, whose key may be forgotten at `lives`. What is beside its new lease may need it for longer.
local function put(key, record, lives, is_alone)
  if not is_alone then lives = time_text(math.max(lives, now + call('PTTL', key))) end
  call('SET', key, record, 'PXAT', lives)
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

-- What lies beside records. Most runs meet nothing of that.
local queue
local function queues()
  queue = queue or make_queue(now, stored, fetch, force)
  return queue
end

-- The keys of a semaphore's slots, '4,11'.
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
local function find_request(record, request, but)
  if request == '-' or not record:find(' ' .. request .. ' ', 80, true) then return nil end
  for at, expires, id in each_lease(record) do
    if expires > now_text and id ~= but and request_of(record, at) == request then return at end
  end
end

-- The answer to a request that the leases of a record keep from being granted: its own, if it has one, or all.
local function refuse(record, request, slots)
  local at = find_request(record, request)
  return {0, at and show(record, at, now, 1, slots) or show_holders(record, now, 0)}
end

-- Who waits, and is refused, stands in the queue of each name, or of the semaphore, from now on: of these KEYS.
local function stand_in_line(first, last, how)
  if not how[8] then return end
  local place = queues().place(unpack(how, 8, 15))
  if not place.entry then return end
  for i = first, last do queue.stand(KEYS[i], place, how[6] ~= '-') end
end

-- Grants one lease over all the given keys, or none of them.
--
-- KEYS  record × n, [index of the semaphore]
-- HOW   TTL; ms from now on to HOLD_UNTIL, or 0; LOCK_DELAY. Then, where it needs them: which slots of a semaphore,
--       '4,11', in the order of their records, or '-'; how many permits that has; where it stands in the queue of
--       servers. With a TTL of 0 it is only looked, never granted
-- line  the lease's line as its record shall have it, from LEASE on, but perhaps for TOKEN, and with a 0 for HOLD_UNTIL
-- Reply {1, token}; {0, {holder as record.lua shows it …, same request?, params, slots?}}; {0, ms} free, and kept for
--       so long for another server; {0} where only looking found nobody, or too few permits are left; {-1}; {-2}; {-3}
local function acquire(first, last, how, line)
  if not marked then return '-1' end
  local proposed = line:sub(38, 53)
  if proposed > token_max then return '-2' end

  -- The keys that queues are beside: the records, or the index.
  local front, back, slots, index, request = first, last, how[6] or '-', nil, nil
  if slots ~= '-' then
    index, request, front, last = KEYS[last], request_of(line, -14), last, last - 1
    if queues().has_buried(index, line:sub(1, 32)) then return '-3' end
    -- A retry of a request that holds other slots of this semaphore.
    local earlier = request ~= '-' and call('GET', index .. '///' .. request)
    local its_slots = earlier and earlier ~= line:sub(1, 32) and call('GET', index .. '//' .. earlier)
    local record = its_slots and its_slots ~= '' and fetch(keys_of(index, its_slots)[1], call)
    if record and find_request(record, request) then return refuse(record, request, its_slots) end
  end

  -- How many shared leases a name has at most, and how long its record may get, bytes: each call reads and writes it.
  local shared_max, record_max = 1000, 262144
  -- What the records are to begin with, and what follows their fence.
  local token, head, tails, own = proposed, PLAIN, {}, false
  for i = first, last do
    local record, beside = fetch(KEYS[i], call)
    local fence, tail, is_same = record:sub(17, 32), record:sub(33, 80), false
    if beside and record:sub(3, 15) > now_text then
      if i == front and queues().has_buried(KEYS[i], line:sub(1, 32)) then return '-3' end
      head = record:sub(1, 16) > head and record:sub(1, 16) or head
    end
    if #record > 80 then
      request = request or request_of(line, -14)
      local id, freed, shared = line:sub(1, 32), '', {}
      local may_share = line:sub(36, 36) == 's' and how[3] ~= '0' and #record < record_max
        and not find_request(record, request, id)
      for at, expires, other in each_lease(record) do
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
          elseif may_share and record:sub(at + 50, at + 50) == 's' and #shared + 1 < shared_max then
            shared[#shared + 1] = record:match('^[^\n]+\n', at + 1)
          else
            stand_in_line(front, back, how)
            return refuse(record, request)
          end
        end
      end
      -- Who wants the name for itself, and has waited for longer, is not overtaken.
      if #shared > 0 and not own and head ~= PLAIN
        and queues().is_wanted_alone(queue.of(KEYS[i]), queue.place(unpack(how, 8, 15))) then
        stand_in_line(front, back, how)
        return refuse(record, request)
      end
      if freed ~= '' then tail = ' ' .. freed .. record:sub(47, 80) end
      tail = tail .. table.concat(shared)
    end
    if is_same and token < fence then
      token = fence
    elseif token <= fence and not is_same then
      token = TOKEN:format(fence + 1)
    end
    tails[i] = tail
  end
  -- Permits of a higher limit count, too.
  local is_full = index and not own and call('ZCOUNT', index, now + 1, '+inf') + last - first + 1 > tonumber(how[7])
  if is_full or how[3] == '0' then
    stand_in_line(front, back, how)
    return '0'
  end

  local waiting, place, slot, shared
  if index or how[8] or head ~= PLAIN then
    slot, shared = index and tonumber(slots:match('^%d+')) or 0, line:sub(36, 36) == 's'
    waiting, place = {}, queues().place(unpack(how, 8, 15))
    local freed, kept = 0, now
    for i = first, last do freed = math.max(freed, tails[i]:sub(2, 14)) end
    for i = front, back do
      waiting[i] = queue.of(KEYS[i])
      if not own and (index or #tails[i] == 48) then
        kept = math.max(kept, queue.kept_until(waiting[i], place, math.min(freed, now), slot, shared))
      end
    end
    if kept > now then
      stand_in_line(front, back, how)
      return '0 ' .. kept - now
    end
  end

  -- Most leases of a run have the same terms, and so the same words for them.
  local ttl, hold, free = how[3], how[4], how.free
  if not free then
    free = now + ttl + how[5]
    how.free, how.expires, how.lives = free, time_text(now + ttl) .. ' ', time_text(free + ARGV[3])
  end
  if token ~= proposed then line = line:sub(1, 37) .. token .. line:sub(54) end
  if hold ~= '0' then line = line:sub(1, 55 + #ttl) .. time_text(now + hold) .. line:sub(57 + #ttl) end
  if index then index_slots(index, slots, free) end
  for i = first, last do
    local tail = tails[i]
    put(KEYS[i], head .. token .. tail .. how.expires .. line .. '\n', how.lives, #tail == 48 and head == PLAIN)
  end
  if index then
    call('ZREMRANGEBYSCORE', index, '-inf', now)
    index_lease(index, slots, line:sub(1, 32), request, free)
  end
  for i = front, waiting and back or 0 do
    if #waiting[i] > 0 or place.after then
      queue.put(KEYS[i], queue.pass(waiting[i], place, slot, shared))
      if place.after and not index then queue.lies_beside(KEYS[i], 3000) end
    end
  end
  return '1 ' .. token
end

-- Takes a lease away wherever it is held here, and makes sure that it stays away: where the acquire has not arrived
-- yet, or may come after a copy that was given back to this node, a tombstone meets it (§1.4). Needs no marker, since
-- forgetting is always safe; but only with the right one does "not held" say that it was not (§1.8).
--
-- KEYS  record × n, or the index of a semaphore
-- HOW   why; and 'slots', if it is the index:
--       'release'  somebody asked for it
--       'undo'     nobody was told that it was granted, or who was has left: a lease that a retry joined stays
--       'lost'     the same of a round that was lost, silently, or its own undo would wake the contender that lost
--                  it; and where it found nothing it leaves no fence
--       'over'     no quorum holds it any more: what is left of it goes
--       'bar'      where it is held it stays; where it is not, it shall not come
-- id    the lease
-- Reply {1, extended?} it was held, or a part of it; {0, 0} it was not (any more); {0, 1} it is, and stays; {0, 2} it
--       is not held here, but this node may have forgotten it
local function release(first, last, how, id)
  local why, keys, named = how[3], KEYS, KEYS[first]
  local index = how[4] and named
  if index then
    local slots = redis.pcall('GET', index .. '//' .. id)
    keys = type(slots) == 'string' and keys_of(index, slots) or {}
    first, last = 1, #keys
  end

  local records, waits, found, held, kept, extended, may_come, request = {}, false, 0, false, false, false, false, '-'
  for i = first, last do
    local record, beside = fetch(keys[i], redis.pcall)
    local at = record and find_lease(record, id)
    if at then
      local mark, expires = record:sub(at + 48, at + 48), record:sub(at + 1, at + 13)
      if expires > now_text then
        if why == 'bar' or mark == 'j' and (why == 'undo' or why == 'lost') then return '0 1' end
        held = true
      elseif taken_until(record, at, expires) > now_text then
        -- Only its holder's own word frees what has expired and is kept.
        if why ~= 'release' then
          -- Of a semaphore that text says which slots it has, which its holder's own word must find.
          if not index then queues().bury(named, id) end
          return marked and '0 0' or '0 2'
        end
        kept = true
      end
      extended, may_come = extended or mark ~= 'a', may_come or mark == 'h' or mark == 'j'
      if index then request = request_of(record, at) end
      local others = others_than(record, at)
      waits = waits or beside
      if why ~= 'lost' then
        records[i] = record:sub(1, 33) .. now_text .. ' ' .. id .. others
      elseif mark == 'a' and #others == 1 and record:sub(34, 46) == EMPTY:sub(34, 46)
        and record:sub(at + 52, at + 67) == record:sub(17, 32) then
        -- Nobody was told its token, and with that as the fence the node would take what heals the lease that it
        -- lost to for late.
        records[i] = record:sub(1, 16) .. EMPTY:sub(17)
      else
        records[i] = record:sub(1, 33) .. now_text .. record:sub(47, 79) .. others
      end
    end
    if at or record and record:sub(48, 79) == id then found = found + 1 end
  end

  if index then
    for _, key in ipairs(keys) do redis.pcall('ZREM', index, key:match('%d+$')) end
    if #keys > 0 then call('DEL', index .. '//' .. id) end
    local by_request = index .. '///' .. request
    if request ~= '-' and redis.pcall('GET', by_request) == id then call('DEL', by_request) end
  end
  local freed = (held or kept) and why ~= 'lost'
  for i = first, last do
    local key, record = keys[i], records[i]
    if record == EMPTY then
      call('DEL', key)
      stored[key] = false
    elseif record then
      force(key, record)
    end
    if freed and not index then
      redis.pcall('PUBLISH', key, waits and queues().first_of(queue.of(key), 1) or '')
    end
  end
  if freed and index then redis.pcall('PUBLISH', index, queues().first_of(queue.of(index), #keys)) end
  -- Something is missing: a lease that has expired and gone, or one that is still on its way.
  if may_come or found == 0 or found < last - first + 1 then queues().bury(named, id, index) end
  return held and (extended and '1 1' or '1 0') or marked and '0 0' or '0 2'
end

-- The functions that fewer runs need.
local function rarer()
  -- Sets the remaining time of a lease that is still held, and carries its token: the second fencing round,
  -- extending, proclaiming, giving a copy what it missed. All keys or none.
  --
  -- KEYS  record × n, or the index of a semaphore, under which the lease's slots are looked up
  -- HOW   life: ms, or 'own' (as granted) or 'keep' (as it is) or 'raise' (as granted, and the token is new)
  --       joins: '1' = a retry of its request has it too from now on (§1.9)
  --       'slots', if it is the index
  -- what  LEASE TOKEN VERSION DATA: a token of zeros = as it is; DATA replace those of an earlier version, '0' and ''
  --       = none
  -- Reply {1, remaining, ttl, mark, version, request, params, data, slots, ends sooner now?, ms to HOLD_UNTIL or 0,
  --       LOCK_DELAY, was at HOLD_UNTIL already?, MODE}; {0} not held (any more), or to be raised to, or joined with, a
  --       token that may have been issued here meanwhile, or raised or joined with another token; {0, 1} over, since it
  --       was held for as long as it may be; {-1}; {-2}
  local function extend(first, last, how, what)
    if not marked then return '-1' end
    local life, joins = how[3], how[4]
    local id, token, version, data = what:match('^(%x+) (%S+) (%d+) (.*)$')
    local carries = token ~= '0000000000000000'
    local raises = carries and (joins == '1' or life == 'raise')
    local index, slots, keys = how[5] and KEYS[first], '', KEYS
    if index then
      slots = call('GET', index .. '//' .. id)
      if not slots or slots == '' then return '0' end
      keys = keys_of(index, slots)
      first, last = 1, #keys
    end

    local heads, others, before, mark, lease = {}, {}, nil, nil, nil
    for i = first, last do
      local record = fetch(keys[i], call)
      local at, fence = find_lease(record, id), record:sub(17, 32)
      if not at then return '0' end
      -- One lease: what it says is the same under every key.
      before, mark, lease = record:sub(at + 1, at + 13), record:sub(at + 48, at + 48), read_lease(record, at)
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
      heads[i], others[i] = record:sub(1, 16) .. fence .. record:sub(33, 80), others_than(record, at)
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
    local line, lives = write_lease(id, ends, mark, lease), time_text(free + ARGV[3])
    for i = first, last do
      put(keys[i], heads[i] .. line .. others[i], lives, #others[i] == 1 and heads[i]:byte(3) == 48)
    end
    if index then index_lease(index, slots, id, lease.request, free) end
    return {
      1, ends - now, lease.ttl, mark, lease.version, lease.request, lease.params, lease.data, slots,
      ends < before and 1 or 0, limit > 0 and limit - now or 0, lease.delay, at_limit and 1 or 0,
      lease.mode,
    }
  end

  -- Gives a lease back to a node that does not have it (§1.7). Where the members changed and fewer than a quorum hold
  -- the lease, the caller counts the copies that were taken; otherwise nobody waits for the answer.
  --
  -- KEYS  record × n, [index of the semaphore]
  -- HOW   which slots of a semaphore, or nothing
  -- line  the lease's line as its record shall have it, with 'h' or 'j'
  -- Reply {1} healed; {0} over, or somebody else's, or a later token is known, or this lease was released here;
  --       {-1}; {-2}; {-3}
  local function heal(first, last, how, line)
    if not marked then return '-1' end
    local ends, id, mark, lease = line:sub(1, 13), line:sub(15, 46), line:sub(48, 48), read_lease(line, 0)
    if lease.token > token_max then return '-2' end
    local slots, index, named = how[3], nil, KEYS[first]
    if slots then named, index, last = KEYS[last], KEYS[last], last - 1 end
    if (index or fetch(named, call):byte(3) ~= 48) and queues().has_buried(named, id) then return '-3' end
    if ends <= now_text then return '0' end

    local heads, others = {}, {}
    for i = first, last do
      local record = fetch(KEYS[i], call)
      local fence, here, beside = record:sub(17, 32), false, {}
      for at, expires, other in each_lease(record) do
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
      if not here and (fence > lease.token or record:sub(48, 79) == id) then
        -- A later lease has been here and is gone, or this one was released, perhaps with a lower token than the
        -- others have: what was sent to heal it is late. Which of them it was cannot be told any more once a
        -- contender has raised the fence, so nothing is healed then. (One that lost, and found nothing here, has
        -- left nothing.)
        return '0'
      end
      if fence < lease.token then fence = lease.token end
      heads[i], others[i] = record:sub(1, 16) .. fence .. record:sub(33, 80), table.concat(beside)
    end

    ends = tonumber(ends)
    local free = ends + lease.delay
    if index then index_slots(index, slots, free) end
    local lives = time_text(free + ARGV[3])
    line = write_lease(id, ends, mark, lease) .. '\n'
    for i = first, last do
      put(KEYS[i], heads[i] .. others[i] .. line, lives, others[i] == '' and heads[i]:byte(3) == 48)
    end
    if index then index_lease(index, slots, id, lease.request, free) end
    return '1'
  end

  return {extend = extend, heal = heal}
end

local functions = {acquire = acquire, release = release}

-- How calls run: the words of that, and the function.
local hows, others = {}, nil
local function read_how(text)
  local how = {}
  for word in text:gmatch('%S+') do how[#how + 1] = word end
  others = others or not functions[how[1]] and rarer()
  how.run, how.keys = functions[how[1]] or others[how[1]], how[2] + 0
  hows[text] = how
  return how
end

local replies, k = {now}, ARGV[1] ~= '' and 2 or 1
for a = 4, #ARGV, 2 do
  local how = hows[ARGV[a]] or read_how(ARGV[a])
  local answered, reply = pcall(how.run, k, k + how.keys - 1, how, ARGV[a + 1])
  if not answered then
    -- What a command answered has a code in front, what Lua says has not. Redis 6 says where, too.
    reply = tostring(type(reply) == 'table' and reply.err or reply)
    reply = reply:match('^@user_script: %d+: %-(.*)$') or reply
    reply = {err = reply:find('^%u+ ') and reply or 'ERR ' .. reply}
  end
  k, replies[#replies + 1] = k + how.keys, reply
end
return replies
