-- Writes the marker if it still is what the caller saw ('' = none).
--
-- KEYS  marker
-- ARGV  1 the marker seen   2 the new one
-- Reply {1, now, new}; {0, now, marker?} it has changed meanwhile
local now = clock()
local marker = redis.call('GET', KEYS[1])
if (marker or '') ~= ARGV[1] then return {0, now, marker} end
redis.call('SET', KEYS[1], ARGV[2])
return {1, now, ARGV[2]}
