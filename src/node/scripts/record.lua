-- Shared beginning of every script: the stored form of a lease, and the time.
--
-- A lease lives in ONE string key, so that a grant reads and sets one key. The
-- key outlives the lease by the fence retention, since it also keeps the fence:
--
--   FENCE                                         nobody holds it; the fence remains
--   FENCE TOKEN EXPIRES LEASE TTL REQUEST DATA    held until EXPIRES (node's clock)
--
--   FENCE    the highest token known here, TOKEN that of this lease (issuing tokens
--            raises the fence, not this), each with 16 digits. Lua's .. and tostring
--            keep only 14 of them; digits() keeps all.
--   EXPIRES  ms since the epoch, 13 digits from 2001 to 2286. LEASE 32 hex digits.
--            So far all stands at fixed places, where it is read without a search.
--   TTL      ms. REQUEST the caller's request id or '-'; once a retry of the request has
--            taken the lease over, then + and that retry's claim (§1.9). DATA opaque, to the end
--
-- Replies: a list that begins with a code and the node's clock in ms.
--    1  done     0  refused    -1  the marker is not the expected one (§4)
--   -2  the proposed token is too far ahead of this node's clock (§2.4)
--   -3  this lease was released before its acquire arrived (§1.4)
local function parse(record)
  local fence = #record == 16 and tonumber(record)
  if fence then return fence, 0, 0, '' end
  local token, expires, lease, ttl, request, data
  fence, token, expires, lease, ttl, request, data =
    string.match(record, '^(%d+) (%d+) (%d+) (%x+) (%d+) (%S+) (.*)$')
  if not fence then error('not a lease record') end
  return tonumber(fence), tonumber(token), tonumber(expires), lease, tonumber(ttl), request, data
end

-- A token as text. Printing a double without decimals is exact, and so is every token below 2^53.
local function digits(token)
  return string.format('%016.0f', token)
end

local function clock()
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  return math.floor(now_us / 1000), now_us
end

