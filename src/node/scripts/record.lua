-- Shared beginning of every script: the stored form of a lease, and the time.
--
-- A lease lives in ONE string key, so that a grant is one GET and one SET. The
-- key outlives the lease by the fence retention, since it also keeps the fence:
--
--   FB FU                                       nobody holds it; the fence remains
--   FB FU TB TU EXPIRES TTL LEASE REQUEST DATA  held until EXPIRES (node's clock)
--
--   FB+FU    the fence: the highest token known here. FB is the text of a number
--            that a server sent, FU a small count on top. Lua's .. and tostring
--            keep only 14 digits and a token has 16, so no token is ever
--            formatted here: texts are passed through, sums only returned.
--   TB+TU    the token of this lease (issuing tokens raises the fence, not this)
--   EXPIRES  ms since the epoch, TTL in ms, LEASE 32 hex digits,
--   REQUEST  the caller's request id or '-'; once a retry of the request has taken the
--            lease over, then + and that retry's claim (§1.9). DATA opaque, to the end
--
-- Replies: a list that begins with a code and the node's clock in ms.
--    1  done     0  refused    -1  the marker is not the expected one (§4)
--   -2  the proposed token is too far ahead of this node's clock (§2.4)
--   -3  this lease was released before its acquire arrived (§1.4)
local function parse(record)
  local fb, fu, tb, tu, expires, ttl, lease, request, data =
    string.match(record, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%x+) (%S+) (.*)$')
  if fb then return fb, fu, tb, tu, tonumber(expires), ttl, lease, request, data end
  fb, fu = string.match(record, '^(%d+) (%d+)$')
  if not fb then error('not a lease record') end
  return fb, fu, '', '', 0, '', '', '', ''
end

local function clock()
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  return math.floor(now_us / 1000), now_us
end

