-- The queue of the servers that wait for a record, or for slots of a semaphore: whose turn it is (§5). A hint: no
-- promise about holders rests on it. A text under the record's key, or the index, and '/queue', to be read by
-- `redis-cli GET`: a line an entry, in order,
--
--   ARRIVED QUEUE LAPSES KEEP WIDE LIMIT
--
--   ARRIVED  when the oldest waiter of that server arrived, µs by the nodes' clocks, 16 digits
--   QUEUE    which queue of which server, hex
--   LAPSES   when the entry is gone unless it is written again, ms since the epoch by this node's clock
--   KEEP     for how many ms what is free is kept for it
--   WIDE     '1' = it wants several records or slots: these are kept for it until it lapses. '2' = it wants the record
--            shared with others
--   LIMIT    of a semaphore: it wants slots below this
--
-- An acquire of a waiter says where it stands: ARRIVED QUEUE LIFE KEEP WIDE LIMIT NEXT NEXT_WIDE, where LIFE is ms
-- until the entry lapses, and NEXT is when the next waiter of its queue arrived, or zeros. With a LIFE of 0 it does not
-- wait, and comes after all but its own queue.

-- The functions of what lies beside records, for a run that meets any of it: most meet nothing. They get how a run
-- reads and writes: what it knows to be stored, `fetch` and `force` of lease.lua.
local function make_queue(now, stored, fetch, force)
  local queue = {}

  -- The entries of a queue that have not lapsed, in order. What is no queue has none. None lives for longer than it
  -- may: a clock that stepped back would stretch it.
  function queue.read(text)
    local entries, longest = {}, 3000
    if type(text) ~= 'string' then return entries end
    for line in text:gmatch('[^\n]+') do
      local entry = {}
      entry.arrived, entry.id, entry.lapses, entry.keep, entry.wide, entry.limit =
        line:match('^(%d+) (%x+) (%d+) (%d+) (%d) (%d+)$')
      local left = tonumber(entry.lapses or 0) - now
      if left > 0 and left <= longest then entries[#entries + 1] = entry end
    end
    return entries
  end

  -- A queue as text, and when its last entry lapses. It has no more than so many.
  function queue.write(entries)
    local lines, last, most = {}, 0, 64
    for i, entry in ipairs(entries) do
      lines[i] = entry.arrived .. ' ' .. entry.id .. ' ' .. entry.lapses .. ' ' .. entry.keep .. ' ' .. entry.wide
        .. ' ' .. entry.limit
      last = math.max(last, entry.lapses)
    end
    table.sort(lines)
    return table.concat(lines, '\n', 1, math.min(#lines, most)), last
  end

  -- The queue beside a key.
  function queue.of(key)
    local text = stored[key .. '/queue']
    if text == nil then text = redis.pcall('GET', key .. '/queue') end
    return queue.read(text)
  end

  -- Stores it. It is a hint, so an error of that is none of the call.
  function queue.put(key, entries)
    local text, lapses = queue.write(entries)
    local place = key .. '/queue'
    if text == '' then redis.pcall('DEL', place) else redis.pcall('SET', place, text, 'PX', lapses - now) end
    stored[place] = text
  end

  -- Has a record say that something lies beside it for so many ms. It says so for longer, to be written less often.
  function queue.lies_beside(key, life)
    local record = fetch(key, redis.pcall)
    if record and record:sub(3, 15) < time_text(now + life) then
      record = '2 ' .. time_text(now + 2 * life) .. record:sub(16)
      if redis.pcall('SET', key, record, 'PX', math.max(redis.pcall('PTTL', key), 2 * life)).ok then
        stored[key] = record
      end
    end
  end

  -- Has the acquire of this lease find that it was released.
  function queue.bury(key, id, index)
    -- How long a tombstone waits, ms: it and the acquire that it overtook sit in the same stalled node and run within
    -- moments of each other.
    local life = 60000
    force(key .. '//' .. id, '', life)
    if not index then queue.lies_beside(key, life) end
  end

  function queue.has_buried(key, id)
    return redis.call('GET', key .. '//' .. id) == ''
  end

  -- Where an acquire stands: its queue, and where it waits its entry, and that of the next waiter where there is one,
  -- which lives for so many ms until that asks by itself. Nowhere without these words.
  function queue.place(arrived, id, life, keep, wide, limit, next_arrived, next_wide)
    local next_life = 3000
    if not next_wide then return {} end
    local place, lapses = {id = id}, TIME:format(now + life)
    if life ~= '0' then
      place.entry = {arrived = arrived, id = id, lapses = lapses, keep = keep, wide = wide, limit = limit}
    end
    if tonumber(next_arrived) > 0 then
      lapses = TIME:format(now + next_life)
      place.after = {arrived = next_arrived, id = id, lapses = lapses, keep = keep, wide = next_wide, limit = limit}
    end
    return place
  end

  -- Puts a place that was refused into the queue beside a key.
  function queue.stand(key, place, index)
    local standing = {place.entry}
    for _, entry in ipairs(queue.of(key)) do
      if entry.id ~= place.id then standing[#standing + 1] = entry end
    end
    queue.put(key, standing)
    if not index then queue.lies_beside(key, 3000) end
  end

  -- Whether an entry stands before a place. Who does not wait comes after all but its own queue.
  local function is_before(entry, place)
    if entry.id == place.id then return false end
    local mine = place.entry
    return not mine or entry.arrived < mine.arrived or entry.arrived == mine.arrived and entry.id < mine.id
  end

  -- The queue without this place, which was granted, or with that of its next waiter. Those who stood before it have
  -- had their moments, and are gone until they ask again; of a `shared` lease only those who cannot be let in beside
  -- it.
  function queue.pass(entries, place, slot, shared)
    local left = {place.after}
    for _, entry in ipairs(entries) do
      local granted = place.entry and entry.id == place.id
      local may_stay = not is_before(entry, place) or slot >= tonumber(entry.limit) or shared and entry.wide == '2'
      if may_stay and not granted then left[#left + 1] = entry end
    end
    return left
  end

  -- Until when what is free since `freed` is kept for those who stand before this place: a moment for each, one after
  -- the other. Of a semaphore, `slot` is the lowest one that is asked for. Who asks for a `shared` lease is in nobody's
  -- way who wants that, too.
  function queue.kept_until(entries, place, freed, slot, shared)
    for _, entry in ipairs(entries) do
      if is_before(entry, place) and slot < tonumber(entry.limit) and not (shared and entry.wide == '2') then
        freed = entry.wide == '1' and math.max(freed, entry.lapses) or freed + entry.keep
      end
    end
    return freed
  end

  -- Whether somebody who wants the record for itself stands before this place.
  function queue.is_wanted_alone(entries, place)
    for _, entry in ipairs(entries) do
      if is_before(entry, place) and entry.wide ~= '2' then return true end
    end
    return false
  end

  -- Whom to tell that so many records are free: the ids of the first in the queue. Those who can share one are told
  -- together.
  function queue.first_of(entries, free)
    local ids, shares = {}, false
    for i, entry in ipairs(entries) do
      if i > free and not (shares and entry.wide == '2') then break end
      ids[i], shares = entry.id, entry.wide == '2'
      if entry.wide == '1' then break end
    end
    return table.concat(ids, ' ')
  end

  return queue
end
