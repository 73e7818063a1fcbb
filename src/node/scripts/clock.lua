-- Shared beginning of every script.
--
-- Replies: a list that begins with a code and the node's clock in ms.
--    1  done     0  refused    -1  the marker is not the expected one (§4)
--   -2  the proposed token is too far ahead of this node's clock (§2.4)
--   -3  this lease was released before its acquire arrived (§1.4)

-- '%d' is faster than '%.0f', but only 64-bit builds of Redis have all digits with it.
local TOKEN, TIME = '%016d', '%d'

-- This node's clock, in ms, in µs, and in ms as text.
local function clock()
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  local now = (now_us - now_us % 1000) / 1000
  local text = TIME:format(now)
  if #text ~= 13 then
    TOKEN, TIME = '%016.0f', '%.0f'
    text = TIME:format(now)
  end
  return now, now_us, text
end

