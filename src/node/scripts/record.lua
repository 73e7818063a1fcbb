-- The stored form of a lease.
--
-- A lease lives in ONE string key, so that a grant reads and sets one key. The key outlives the
-- lease by the fence retention, since it also keeps the fence. All but the end stands at fixed
-- places, in the order in which a look at it can be over soonest:
--
--    1 EXPIRES  ms since the epoch by the node's clock, 13 digits from 2001 to 2286; zeros once the
--               lease was released. So a record is greater than a time, as texts, while it is held
--   14 KEPT     when the key itself expires, written with that end. Begins with a zero under a name that
--               nobody had before: most of these do not come again, so a release leaves nothing behind
--               FENCE, here the first 12 digits of LEASE, and the key its end. Where one does come again,
--               its key gets a longer life, and as long as that suffices a record is written over the
--               last one, for less than half of what a SET with an end costs
--   27 FENCE    the highest token known here, 16 digits. Lua's .. and tostring keep only 14 of
--               them; digits() keeps all. What follows is not there where nothing is known but this
--   43 FLAG     'A' or 'a' as it was acquired; since it was extended 'E', or '<' where tokens were issued
--               since: the lease's own is lower
--   44 TTL      ms, 8 digits    52 LEASE  32 hex digits    84 a space
--   85 [TOKEN and a space, with '<']   REQUEST and a space   DATA, opaque, to the end
--               REQUEST is the caller's request id or '-'; once a retry of the request has got
--               the lease, too, then + and a claim of each that has it (§1.9). DATA that replaced other
--               begins with its edition, 48 digits: of two copies the one of the later is kept
--
-- From FENCE on, this is the text that an acquire is sent with.
local sub, byte = string.sub, string.byte

-- A token as text. Printing a double without decimals is exact, and so is every token below 2^53.
local function digits(token)
  return string.format('%016.0f', token)
end

-- Says whether it holds a lease, whether or not that has expired.
local function has_lease(record)
  if #record == 42 and string.find(record, '^0%x+$') then return false end
  local flag = byte(record, 43)
  if byte(record, 84) ~= 32 or flag % 32 ~= 1 and flag ~= 69 and flag ~= 60 then error('not a lease record') end
  return true
end

-- FENCE, TOKEN, EXPIRES, LEASE, TTL, REQUEST, DATA. LEASE is '' and EXPIRES 0 where there is none.
local function parse(record)
  local fence = tonumber(sub(record, 27, 42))
  if not has_lease(record) or not string.find(record, '^[^0]') then return fence, 0, 0, '' end
  local token, rest = fence, sub(record, 85)
  if byte(record, 43) == 60 then token, rest = string.match(rest, '^(%d+) (.*)$') end
  local request, data = string.match(rest, '^(%S+) (.*)$')
  local expires, ttl = sub(record, 1, 13), sub(record, 44, 51)
  return fence, tonumber(token), tonumber(expires), sub(record, 52, 83), tonumber(ttl), request, data
end

-- Whether it is what a release of this lease has left.
local function is_left_of(lease, record)
  return byte(record) == 48 and (sub(record, 52, 83) == lease or sub(record, 15, 26) == sub(lease, 1, 12))
end

-- The edition of data, '' of the first: the greater as text is the later.
local function edition(data)
  return string.match(data, '^' .. string.rep('%d', 48)) or ''
end

-- What follows FENCE; all of it text but the TTL.
local function lease_part(fence, token, ttl, lease, request, data)
  local flag, own = 'E', ''
  if token ~= fence then flag, own = '<', token .. ' ' end
  return flag .. string.format('%08d', ttl) .. lease .. ' ' .. own .. request .. ' ' .. data
end

