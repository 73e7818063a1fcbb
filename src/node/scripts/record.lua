-- The record of a name, or of one slot of a semaphore: ONE string key that keeps the fence of the name and its
-- leases, so that a grant reads and sets one key. It is text, to be read by `redis-cli GET`:
--
--   2 BESIDE FENCE FREED LAST
--   EXPIRES LEASE MARK MODE TOKEN TTL HOLD_UNTIL LOCK_DELAY VERSION REQUEST PARAMS DATA
--
-- First line, 79 characters:
--    1  2           the version of this format
--    3  BESIDE      until when the queue of servers, or tombstones, may lie beside this key: a time like EXPIRES. Zeros
--                   where none did, and so no call looks for any
--   17  FENCE       the highest token known here, 16 digits
--   34  FREED       when the last lease ended, a time like EXPIRES; zeros while the name's first lease is still there
--   48  LAST        the lease that was released here last, or 32 zeros
-- Then a line for each lease:
--    1  EXPIRES     when it ends, ms since the epoch by this node's clock, 13 digits
--   15  LEASE       its id, 32 hex digits
--   48  MARK        'a' as it was acquired; 'e' extended since; 'h' healed: given back to this node, which its acquire
--                   may reach yet; 'j' joined: a retry of its request has it too (§1.9)
--   50  MODE        'x' exclusive, alone in its record; 's' shared, beside others of its kind
--   52  TOKEN       its fencing token, 16 digits
--   69  TTL         its life without extension, ms
--       HOLD_UNTIL  no extension reaches beyond this time, which is one like EXPIRES; or 0
--       LOCK_DELAY  for how many ms after EXPIRES the name stays taken, unless the lease is released; or 0
--       VERSION     of two copies of DATA the one of the greater version is kept
--       REQUEST     the caller's request id, or '-'
--       PARAMS      what that request asked for, as 'limit=5,permits=2', or '-'
--       DATA        opaque, without line breaks
-- Each line ends with a line break. The key outlives its leases by the fence retention. From LEASE on, a line is what
-- an acquire is sent with.
--
-- Scripts edit this text and compare its times and tokens as text, which have so many digits for that: to make a
-- number of one costs as much as all else that is done with it, and Lua's .. and tostring keep only 14 of the 16
-- digits of a token. Each run makes all functions anew, so what few runs need is made when it is needed.

-- The first line of a record where there is none, and how it begins where nothing lies beside it.
local EMPTY = '2 0000000000000 0000000000000000 0000000000000 00000000000000000000000000000000\n'
local PLAIN = EMPTY:sub(1, 16)

-- The text of a record as this version writes it, and whether something has lain beside it; nil where it is none.
--
-- One of the version before has 13 digits EXPIRES, zeros once released; 13 KEPT; 16 FENCE; and with a lease a flag,
-- 8 digits TTL, 32 LEASE. Such a lease is held until it expires or is released, and no request is known to have it.
local function read_record(text)
  local version, _, beside = text:byte(1, 3)
  if version == 50 and (#text == 80 or text:byte(80) == 10) then return text, beside ~= 48 end
  local of = string.rep
  local expires, fence, lease =
    text:match('^(' .. of('%d', 13) .. ')' .. of('%x', 13) .. '(' .. of('%d', 16) .. ')(.*)$')
  if not expires then return nil end
  local head = PLAIN .. fence .. ' 0000000000001 ' .. of('0', 32) .. '\n'
  local flag, ttl, id, rest = lease:match('^([aAE<])(%d+)(' .. of('%x', 32) .. ') (.*)$')
  if not flag or tonumber(expires) == 0 then return head end
  local token, data = fence, rest:match('^%S+ (.*)$')
  if flag == '<' then token, data = rest:match('^(%d+) %S+ (.*)$') end
  if not data then return nil end
  -- Data that replaced other began with 48 digits.
  data = data:match('^' .. of('%d', 48) .. '(.*)$') or data
  return head .. expires .. ' ' .. id .. ' e x ' .. token .. ' ' .. tonumber(ttl) .. ' 0 0 0 - - ' .. data .. '\n'
end

-- Goes through the leases in a record: where the line break before each is, EXPIRES, LEASE.
local function each_lease(record)
  local next_at = 80
  return function()
    local at, expires, id = next_at, record:match('^\n(%d+) (%x+) [aehj]', next_at)
    if not id then return nil end
    next_at = record:find('\n', at + 1, true) or #record
    return at, expires, id
  end
end

-- The fields of a lease, as text: MODE, and those from TOKEN on.
local function read_lease(record, at)
  local token, ttl, hold_until, delay, version, request, params, data =
    record:match('^(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) ([^\n]*)', at + 52)
  if not token then error('not a lease record') end
  return {
    mode = record:sub(at + 50, at + 50), token = token, ttl = ttl, hold_until = hold_until, delay = delay,
    version = version, request = request, params = params, data = data,
  }
end

-- The request that has the lease at that place.
local function request_of(record, at)
  return record:match('^%d+ %d+ %d+ %d+ (%S+)', at + 69)
end

-- Where the line break before the lease of this id is, whether or not that is over; nil where there is none.
local function find_lease(record, id)
  if record:sub(95, 126) == id then return 80 end
  local place, start = nil, 96
  repeat
    -- A request may be called the same.
    place, start = record:find(id, start, true)
  until not place or record:byte(place - 15) == 10
  return place and place - 15
end

-- The lines of a record without the one at that place, with the line break before them.
local function others_than(record, at)
  local stop = record:find('\n', at + 1, true) or #record
  if at == 80 and stop == #record then return '\n' end
  return record:sub(80, at - 1) .. record:sub(stop)
end

-- A time as text. Most leases of a run end at the same one.
local times = {}
local function time_text(ms)
  local text = times[ms]
  if not text then
    text = TIME:format(ms)
    times[ms] = text
  end
  return text
end

-- The line of a lease, without its line break.
local function write_lease(id, ends, mark, lease)
  return time_text(ends) .. ' ' .. id .. ' ' .. mark .. ' ' .. lease.mode .. ' ' .. lease.token .. ' ' .. lease.ttl
    .. ' ' .. lease.hold_until .. ' ' .. lease.delay .. ' ' .. lease.version .. ' ' .. lease.request .. ' '
    .. lease.params .. ' ' .. lease.data
end

-- Until when the name is taken by the lease at that place, which expires then.
local function taken_until(record, at, expires)
  local delay = record:match('^%d+ %d+ (%d+)', at + 69)
  if not delay or delay == '0' then return expires end
  return TIME:format(expires + delay)
end

-- A lease as replies show it: remaining, ttl, token, id, version, data, 0. Of one that has expired it is shown how long
-- the name is still taken. In a refusal there follow whether it is of the `same` request, what that asked for if it is,
-- and its slots.
local function show(record, at, now, same, slots)
  local token, ttl, delay, version, params, data =
    record:match('^(%d+) (%d+) %d+ (%d+) (%d+) %S+ (%S+) ([^\n]*)', at + 52)
  if not token then error('not a lease record') end
  local remaining = record:sub(at + 1, at + 13) - now
  if remaining <= 0 then remaining = remaining + delay end
  params = same == 1 and params or same and '-'
  return {remaining, ttl, token, record:sub(at + 15, at + 46), version, data, 0, same, params, slots}
end

-- Who holds a record, as replies show it: the fields above; nil where nobody does. Shared leases are shown as
-- the one with the least id, which is the same at all nodes, with the time that the last of them has; and in place of
-- the 0 a list: how many they are, and the fields of those that last longest, 16 at most.
local function show_holders(record, now, same)
  local shared, least, at_least = {}, nil, nil
  for at, expires, id in each_lease(record) do
    local free = tonumber(expires) > now and expires or taken_until(record, at, expires)
    if tonumber(free) > now then
      if record:sub(at + 50, at + 50) == 'x' then return show(record, at, now, same) end
      shared[#shared + 1] = free .. ' ' .. at
      if not least or id < least then least, at_least = id, at end
    end
  end
  if not least then return nil end
  table.sort(shared)
  local longest = {#shared}
  for i = #shared, math.max(#shared - 15, 1), -1 do
    longest[#longest + 1] = show(record, tonumber(shared[i]:sub(15)), now)
  end
  local shown = show(record, at_least, now, same)
  shown[1], shown[7] = longest[2][1], longest
  return shown
end
