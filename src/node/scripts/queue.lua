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

-- How long the entry of a next waiter lives until it asks by itself, ms; and how many entries are kept.
local NEXT_LIFE, ENTRIES_MAX = 3000, 64
-- The queue where nobody waits, and the place of whom does not.
local NOBODY, NOWHERE = {}, {}
-- Where the fields of an entry are, behind ARRIVED.
local ARRIVED, QUEUE, LAPSES, KEEP, WIDE, LIMIT = 1, 2, 3, 4, 5, 6
-- What WIDE says of one who wants the record shared.
local SHARED = '2'

-- The entries of a queue that have not lapsed, in order. What is no queue has none.
local function read_queue(text, now)
  if type(text) ~= 'string' then return NOBODY end
  local queue = {}
  for line in text:gmatch('[^\n]+') do
    local entry = {line:match('^(%d+) (%x+) (%d+) (%d+) (%d) (%d+)$')}
    if tonumber(entry[LAPSES] or 0) > now then queue[#queue + 1] = entry end
  end
  return queue
end

-- A queue as text, and when its last entry lapses.
local function write_queue(queue)
  local lines, last = {}, 0
  for i, entry in ipairs(queue) do
    lines[i], last = table.concat(entry, ' '), math.max(last, entry[LAPSES])
  end
  table.sort(lines)
  return table.concat(lines, '\n', 1, math.min(#lines, ENTRIES_MAX)), last
end

-- Where an acquire stands: its queue, and where it waits its entry, and that of the next waiter where there is one.
local function read_place(text, now)
  if text == '-' then return NOWHERE end
  local arrived, id, life, keep, wide, limit, next_arrived, next_wide =
    text:match('^(%d+) (%x+) (%d+) (%d+) (%d) (%d+) (%d+) (%d)$')
  if not arrived then return NOWHERE end
  return {
    id = id,
    entry = life ~= '0' and {arrived, id, TIME:format(now + life), keep, wide, limit},
    after = tonumber(next_arrived) > 0 and {next_arrived, id, TIME:format(now + NEXT_LIFE), keep, next_wide, limit},
  }
end

-- The queue with this place in it, which was refused.
local function stand(queue, place)
  local entries = {place.entry}
  for _, entry in ipairs(queue) do
    if entry[QUEUE] ~= place.id then entries[#entries + 1] = entry end
  end
  return entries
end

-- The queue without this place, which was granted, or with that of its next waiter. Those who stood before it have
-- had their moments, and are gone until they ask again; of a `shared` lease only those who cannot be let in beside it.
local function pass(queue, place, slot, shared)
  local entries, found = {place.after or nil}, false
  for _, entry in ipairs(queue) do
    local mine = entry[QUEUE] == place.id
    if mine and place.entry then
      found = true
    elseif mine or found or slot >= tonumber(entry[LIMIT]) or shared and entry[WIDE] == SHARED then
      entries[#entries + 1] = entry
    end
  end
  return entries
end

-- Until when what is free since `freed` is kept for those who stand before this place: a moment for each, one after
-- the other. Of a semaphore, `slot` is the lowest one that is asked for. Who asks for a `shared` lease is in nobody's way
-- who wants that, too.
local function kept_until(queue, place, freed, slot, shared)
  for _, entry in ipairs(queue) do
    if entry[QUEUE] == place.id then
      if place.entry then break end
    elseif slot < tonumber(entry[LIMIT]) and not (shared and entry[WIDE] == SHARED) then
      freed = entry[WIDE] == '1' and math.max(freed, entry[LAPSES]) or freed + entry[KEEP]
    end
  end
  return freed
end

-- Whether somebody who wants the record for itself stands before this place.
local function is_wanted_alone(queue, place)
  for _, entry in ipairs(queue) do
    if place.entry and (entry[QUEUE] == place.id or entry[ARRIVED] > place.entry[ARRIVED]) then return false end
    if entry[WIDE] ~= SHARED then return true end
  end
  return false
end

-- Whom to tell that so many records are free: the ids of the first in the queue. Those who can share one are told
-- together.
local function first_of(queue, free)
  if #queue == 0 then return '' end
  local ids, shares = {}, false
  for i, entry in ipairs(queue) do
    if i > free and not (shares and entry[WIDE] == SHARED) then break end
    ids[i], shares = entry[QUEUE], entry[WIDE] == SHARED
    if entry[WIDE] == '1' then break end
  end
  return table.concat(ids, ' ')
end

