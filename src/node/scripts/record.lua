-- The record of a name, or of one slot of a semaphore: ONE string key that keeps the fence of the name and its
-- leases, so that a grant reads and sets one key. It is text, to be read by `redis-cli GET`:
--
--   2 FENCE FREED LAST
--   LEASE EXPIRES MARK MODE TOKEN TTL HOLD_UNTIL LOCK_DELAY VERSION REQUEST PARAMS DATA
--
-- First line, 65 characters:
--    1  2           the version of this format
--    3  FENCE       the highest token known here, 16 digits
--   20  FREED       when the last lease ended, ms since the epoch by this node's clock, 13 digits; zeros while the
--                   name's first lease is still there
--   34  LAST        the lease that was released here last, or 32 zeros
-- Then a line for each lease:
--    1  LEASE       its id, 32 hex digits
--   34  EXPIRES     when it ends, ms since the epoch by this node's clock, 13 digits
--   48  MARK        'a' as it was acquired; 'e' extended since; 'h' healed: given back to this node, which its acquire
--                   may reach yet; 'j' joined: a retry of its request has it too (§1.9)
--   50  MODE        'x' exclusive; 's', shared, is reserved
--   52  TOKEN       its fencing token, 16 digits
--   69  TTL         its life without extension, ms
--       HOLD_UNTIL  reserved, 0
--       LOCK_DELAY  reserved, 0
--       VERSION     of two copies of DATA the one of the greater version is kept
--       REQUEST     the caller's request id, or '-'
--       PARAMS      what that request asked for, as 'limit=5,permits=2', or '-'
--       DATA        opaque, without line breaks
-- Each line ends with a line break. The key outlives its leases by the fence retention.
--
-- Scripts edit this text, and turn into numbers only what they compare: a number costs five times as much as taking
-- its text out, and Lua's .. and tostring keep only 14 of the 16 digits of a token.
local match, gmatch, find, sub, format = string.match, string.gmatch, string.find, string.sub, string.format

-- '%d' is faster than '%.0f', but only 64-bit builds of Redis have all digits with it.
local TOKEN, TIME = '%016d', '%013d'
if format('%d', 9007199254740991) ~= '9007199254740991' then TOKEN, TIME = '%016.0f', '%013.0f' end

-- A record of the version before as text of this one; nil where it is none. It has 13 digits EXPIRES, zeros once
-- released; 13 KEPT; 16 FENCE; and with a lease a flag, 8 digits TTL, 32 LEASE. Such a lease is held until it expires
-- or is released, and no request is known to have it.
local function renew_record(text)
  local of = string.rep
  local expires, fence, lease =
    match(text, '^(' .. of('%d', 13) .. ')' .. of('%x', 13) .. '(' .. of('%d', 16) .. ')(.*)$')
  if not expires then return nil end
  local head = '2 ' .. fence .. ' 0000000000001 ' .. of('0', 32) .. '\n'
  local flag, ttl, id, rest = match(lease, '^([aAE<])(%d+)(' .. of('%x', 32) .. ') (.*)$')
  if not flag or tonumber(expires) == 0 then return head end
  local token, data = fence, match(rest, '^%S+ (.*)$')
  if flag == '<' then token, data = match(rest, '^(%d+) %S+ (.*)$') end
  if not data then return nil end
  -- Data that replaced other began with 48 digits.
  data = match(data, '^' .. of('%d', 48) .. '(.*)$') or data
  return head .. id .. ' ' .. expires .. ' e x ' .. token .. ' ' .. tonumber(ttl) .. ' 0 0 0 - - ' .. data .. '\n'
end

-- The text of a record as this version writes it; nil where it is none.
local function read_record(text)
  if sub(text, 1, 2) ~= '2 ' then return renew_record(text) end
  if #text == 66 or find(text, '^\n%x+ %d+ [aehj] ', 66) then return text end
end

-- Goes through the leases in a record: where the line break before each is, LEASE, EXPIRES.
local function each_lease(record)
  return gmatch(record, '()\n(%x+) (%d+) [aehj]')
end

-- The fields of a lease from TOKEN on, as text.
local function read_lease(record, at)
  local lease = {}
  lease.token, lease.ttl, lease.version, lease.request, lease.params, lease.data =
    match(record, '^(%d+) (%d+) %d+ %d+ (%d+) (%S+) (%S+) ([^\n]*)', at + 52)
  if not lease.token then error('not a lease record') end
  return lease
end

-- The line of a lease, without its line break.
local function write_lease(id, expires, mark, lease)
  return id .. ' ' .. format(TIME, expires) .. ' ' .. mark .. ' x ' .. lease.token .. ' ' .. lease.ttl .. ' 0 0 '
    .. lease.version .. ' ' .. lease.request .. ' ' .. lease.params .. ' ' .. lease.data
end

-- A lease as replies show it: remaining, ttl, token, id, version, data. Its fields are `lease`.
local function show(id, expires, lease, now)
  return {expires - now, tonumber(lease.ttl), tonumber(lease.token), id, tonumber(lease.version), lease.data}
end
