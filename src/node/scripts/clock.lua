-- Shared beginning of every script.
--
-- Replies: a list that begins with a code and the node's clock in ms.
--    1  done     0  refused    -1  the marker is not the expected one (§4)
--   -2  the proposed token is too far ahead of this node's clock (§2.4)
--   -3  this lease was released before its acquire arrived (§1.4)
local function clock()
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  return math.floor(now_us / 1000), now_us
end

